"""MMVU's questions with options, as Video-R1 asks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER


@dataclass(frozen=True)
class MmvuChoice(Benchmark):
    """The questions of MMVU's validation split that have options.

    Source: Zhao et al. 2025, arXiv 2501.12380; Video-R1 src/eval_bench.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/MMVU"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/MMVU"
    checked: ClassVar[str] = (
        "count and file: hub file list of yale-nlp/MMVU; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 1000
    only: ClassVar[Mapping[str, str]] = {"question_type": "multiple-choice"}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "video": "video_path",
        "question": "question",
        "options": "texts",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "file"
    groups: ClassVar[tuple[str, ...]] = ("subject",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "video_r1@59d65c3",
            ask=VIDEO_R1_LETTER,
            max_tokens=1024,
            scorer="video_r1",
            template="think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the subject and the video, and list the options."""
        subject, file = str(row["video_path"]).split("/")[-2], row["video_path"]
        return {**row, "subject": subject, "file": file, "texts": [*row["choices"].values()]}
