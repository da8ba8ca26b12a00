"""OCRBench: text in images, ten kinds of question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Ocrbench(Benchmark):
    """OCRBench's test split; a right text anywhere in the answer counts.

    Source: Liu et al. 2024, arXiv 2305.07895; lmms-eval tasks/ocrbench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/echo840/OCRBench"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "echo840/OCRBench"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("question_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=128,
            scorer="ocrbench_lmms",
            task="ocrbench",
        ),
    )
    strict: ClassVar[Strict] = Strict("ocr", {"measure": "anls", "cut": 0.6})
