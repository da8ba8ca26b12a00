"""Video-MME: multiple choice about short, medium and long videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER


@dataclass(frozen=True)
class Videomme(Benchmark):
    """Video-MME's test split without subtitles, three questions a video.

    The number of frames decides: 8 and 768 are many points apart.

    Source: Fu et al. 2024, arXiv 2405.21075; lmms-eval tasks/videomme (task videomme).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/Video-MME"
    licence: ClassVar[str] = "academic research only: see the data set's page"
    hub: ClassVar[str] = "lmms-eval/Video-MME"
    checked: ClassVar[str] = "count: arXiv 2405.21075; columns: lmms-eval; 2026-11"
    count: ClassVar[int] = 2700
    files: ClassVar[tuple[str, ...]] = ("videomme",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "video": "file", "question": "question", "options": "texts",
        "choice": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "videoID"
    groups: ClassVar[tuple[str, ...]] = ("duration", "domain", "task_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Select the best answer to the following multiple-choice question based on the "
            "video and the subtitles. Respond with only the letter (A, B, C, or D) of the correct "
            "option.\n{question}\n{listed}\n\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=16,
            scorer="letter_lmms",
            unit="percent",
        ),
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
        """Add the video's file, and the options without their letters and as lines."""
        texts = [str(option).partition(". ")[2] or str(option) for option in row["options"]]
        file = f"data/{row['videoID']}.mp4"
        return {**row, "file": file, "texts": texts, "listed": "\n".join(row["options"])}
