"""OmniBench: questions that need an image and an audio at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import letter_of


@dataclass(frozen=True)
class Omnibench(Benchmark):
    """OmniBench's questions with four options. lmms-eval puts the audio before the image, we after it.

    Source: Li et al. 2024, arXiv 2409.15272; lmms-eval tasks/omni_bench (task omni_bench).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-audio/Omni_Bench_fix"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-audio/Omni_Bench_fix"
    checked: ClassVar[str] = "count: evalscope 1.14.1; columns: lmms-eval; 2026-11"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1142
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "audio": "audio",
        "question": "question",
        "options": "options",
        "choice": "letter",
    }
    groups: ClassVar[tuple[str, ...]] = ("task type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Question:\n{question}\n\nOptions:\n{options}\n\nAnswer with the option's letter "
            "from the given choices directly.",
            max_tokens=128,
            scorer="letter_omni",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the letter of the right option, whose text may itself be a letter."""
        return {**row, "letter": letter_of(row, "answer", "options")}
