"""VideoMathQA: problems of mathematics that a video shows or teaches, with five options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.data.multiple_choice import options_of


@dataclass(frozen=True)
class Videomathqa(Benchmark):
    """VideoMathQA with five options, answered directly and without subtitles.

    lmms-eval's tasks with subtitles and with a chain of thought are left out.

    Source: Rasheed et al. 2025, arXiv 2506.05349; lmms-eval tasks/videomathqa (videomathqa_mcq).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MBZUAI/VideoMathQA"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "MBZUAI/VideoMathQA"
    checked: ClassVar[str] = (
        "count: arXiv 2506.05349; files and licence: hub card; columns: lmms-eval; 2026-11; the form of "
        "the options not"
    )
    count: ClassVar[int] = 420
    files: ClassVar[tuple[str, ...]] = ("videomathqa_mcq_test.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "listed",
        "options": "texts",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "videoID"
    groups: ClassVar[tuple[str, ...]] = ("length", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Select the best answer to the following multiple-choice question based on the video. "
            "Respond with the letter (A, B, C, D or E) of the correct option.\n{question}\n\nAnswer with "
            "the option's letter (A, B, C, D or E) from the given choices directly.",
            max_tokens=16,
            scorer="letter_videomathqa",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, and the options without letters and, as published, under the question."""
        options = [str(option) for option in row["options"]]
        return {
            **row,
            "name": str(row.get("mbinary_id") or row["question_id"]),
            "group": str(row["question_id"]),
            "file": f"videos/{row['videoID']}.mp4",
            "listed": "\n".join([row["question"], *options]),
            "texts": list(options_of(options)),
        }
