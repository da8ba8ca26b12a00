"""SLAKE: questions about radiology images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Slake(Benchmark):
    """SLAKE's English test questions: 1,061 of 2,094 rows; the images are in the unpacked imgs.zip.

    Source: Liu et al. 2021, arXiv 2102.09542; lmms-eval tasks/slake.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/BoKelvin/SLAKE"
    licence: ClassVar[str] = "CC BY 4.0"
    hub: ClassVar[str] = "BoKelvin/SLAKE"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 2094
    columns: ClassVar[Mapping[str, str]] = {
        "id": "qid",
        "image": "path",
        "question": "question",
        "answer": "answer",
    }
    only: ClassVar[Mapping[str, str]] = {"q_lang": "en"}
    cluster: ClassVar[str] = "img_name"
    groups: ClassVar[tuple[str, ...]] = ("answer_type", "content_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=32,
            scorer="slake",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the folder of the images."""
        return {**row, "path": f"imgs/{row['img_name']}"}
