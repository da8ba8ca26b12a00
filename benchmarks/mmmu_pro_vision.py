"""MMMU-Pro's vision questions: question and options are in the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import texts_of


@dataclass(frozen=True)
class MmmuProVision(Benchmark):
    """MMMU-Pro's vision questions; lmms-eval asks that the answer be the letter and nothing else.

    Source: Yue et al. 2024, arXiv 2409.02813; lmms-eval tasks/mmmu_pro.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MMMU/MMMU_Pro"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "MMMU/MMMU_Pro (config vision)"
    checked: ClassVar[str] = (
        "columns: lmms-eval; licence: hub card of MMMU/MMMU_Pro; count: the standard set's; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1730
    options_in_image: ClassVar[bool] = True
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "image",
        "question": "ask",
        "options": "listed",
        "choice": "answer",
    }
    files: ClassVar[tuple[str, ...]] = ("vision",)
    groups: ClassVar[tuple[str, ...]] = ("subject",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Answer with the option letter from the given choices directly.",
            max_tokens=256,
            scorer="letter_equal",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add our question, and read the options; the layout has them as a text."""
        asked = "Answer the question in the image."
        return {**row, "ask": asked, "listed": texts_of(row, "options")}
