"""SEED-Bench: multiple choice about images and the frames of short videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Seedbench(Benchmark):
    """SEED-Bench's 17,990 questions, of which 14,233 are about one image.

    The rule reads the first character: "Answer: B" says A. A video comes as its frames.

    Source: Li et al. 2023, arXiv 2307.16125; lmms-eval tasks/seedbench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/SEED-Bench"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "lmms-lab-encoder/SEED-Bench"
    checked: ClassVar[str] = (
        "columns and prompt: lmms-eval and mm-eval/SEEDBench's metadata, 2026-11"
    )
    count: ClassVar[int] = 17990
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "options": "listed",
        "choice": "answer",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("data_type", "question_type_id")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given choices "
            "directly.",
            max_tokens=128,
            scorer="letter_first",
            task="seedbench",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options."""
        return {**row, "listed": [str(row[f"choice_{letter}"]) for letter in "abcd"]}
