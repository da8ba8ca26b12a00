"""MMSU: questions about what is said in speech, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmsu(Benchmark):
    """MMSU's 47 tasks of perception and reasoning about speech, four options each.

    lmms-eval reads a copy of the authors' data that has the right letter, not its text, in a column.

    Source: Wang et al. 2025, arXiv 2506.04779; lmms-eval tasks/mmsu.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/ngqtrung/mmsu"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "ngqtrung/mmsu"
    checked: ClassVar[str] = (
        "count and licence: hub card of ddwang2000/MMSU; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 5000
    columns: ClassVar[Mapping[str, str]] = {
        "audio": "audio",
        "question": "question",
        "options": "texts",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("category", "sub_category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Listen to the audio and answer the following question.\n\nQuestion: {question}\n\n"
            "A. {choice_a}\nB. {choice_b}\nC. {choice_c}\nD. {choice_d}\n\nAnswer with the letter "
            "(A, B, C, or D) only.",
            max_tokens=256,
            scorer="letter_mmsu",
            unread="expected",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options as a list; the prompt prints a missing one as Python does."""
        columns = [f"choice_{letter}" for letter in "abcd"]
        listed = [row[column] for column in columns if row[column]]
        return {**row, **{column: str(row[column]) for column in columns}, "texts": listed}
