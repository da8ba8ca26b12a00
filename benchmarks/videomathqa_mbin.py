"""VideoMathQA: the right option against each of the four others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Official, Strict
from vlmrl.benchmarks.videomathqa import Videomathqa


@dataclass(frozen=True)
class VideomathqaMbin(Videomathqa):
    """VideoMathQA as pairs: a question counts if all four of its pairs are right.

    Source: arXiv 2506.05349; lmms-eval tasks/videomathqa (videomathqa_mbin).
    """

    checked: ClassVar[str] = (
        "count: 4 for each of 420 questions, as hub card and arXiv 2506.05349 say; files and licence: hub "
        "card; columns: lmms-eval; 2026-11; the form of the options not"
    )
    count: ClassVar[int] = 1680
    files: ClassVar[tuple[str, ...]] = ("videomathqa_mbin_test.parquet",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Select the best answer to the following multiple-choice question based on the video. "
            "Respond with the letter (A or B) of the correct option.\n{question}\n\nAnswer with the "
            "option's letter (A or B) from the given choices directly.",
            max_tokens=16,
            scorer="letter_videomathqa",
            aggregate="all_of_groups",
            by="group",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="all_of_groups", by="group")
