"""POPE: does the image show an object? Three ways of choosing those that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Pope(Benchmark):
    """POPE's test split; lmms-eval prints accuracy and F1, VLMEvalKit F1.

    Source: Li et al. 2023, arXiv 2305.10355; lmms-eval tasks/pope, VLMEvalKit POPE.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/POPE"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/POPE"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    count: ClassVar[int] = 9000
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "image_source"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=128,
            scorer="yes_no_exact",
            also=("f1",),
            task="pope",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question} Please answer yes or no.",
            max_tokens=2048,
            scorer="yes_no_words",
            aggregate="f1",
            unit="percent",
            task="ImageYORNDataset POPE",
        ),
    )
    strict: ClassVar[Strict] = Strict("yes_no", {})
