"""VisuLogic: visual logic that language alone does not solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Visulogic(Benchmark):
    """VisuLogic's 1,000 questions; the options are in the image, which is in the unpacked images.zip.

    Source: Xu et al. 2025, arXiv 2504.15279; lmms-eval tasks/visulogic.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/VisuLogic/VisuLogic"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "VisuLogic/VisuLogic"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image_path",
        "question": "question",
        "choice": "label",
    }
    files: ClassVar[tuple[str, ...]] = ("data.jsonl",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer with the option letter only.",
            max_tokens=64,
            scorer="letter_visulogic",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
