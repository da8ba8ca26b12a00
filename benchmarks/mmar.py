"""MMAR: questions that need several steps of reasoning about audio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmar(Benchmark):
    """MMAR's questions about sound, music, speech and their mixtures.

    Source: Ma et al. 2025, arXiv 2505.13032; lmms-eval tasks/mmar.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/ngqtrung/mmar"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "ngqtrung/mmar"
    checked: ClassVar[str] = (
        "count: MMAR's README; licence: hub file list of BoJack/MMAR; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "audio": "audio",
        "question": "question",
        "options": "texts",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("modality", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Listen to the audio and answer the following multiple-choice question. Respond with "
            "only the letter (A, B, C, or D) of the correct option.\n{question}\n{listed}\nThe "
            "best answer is:",
            max_tokens=128,
            scorer="letter_mmmu",
            unread="expected",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options as lines, and without their letters."""
        texts = [str(option)[2:].strip() for option in row["choices"]]
        return {**row, "texts": texts, "listed": "\n".join(row["choices"])}
