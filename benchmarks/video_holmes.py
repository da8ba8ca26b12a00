"""Video-Holmes: suspense films whose clues must be put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Known, Official, Strict


@dataclass(frozen=True)
class VideoHolmes(Benchmark):
    """Video-Holmes's test questions with six options, of seven kinds.

    Source: Cheng et al. 2025, arXiv 2505.21374; lmms-eval tasks/video_holmes.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/TencentARC/Video-Holmes"
    licence: ClassVar[str] = "Apache-2.0, for academic purposes only"
    hub: ClassVar[str] = "TencentARC/Video-Holmes"
    checked: ClassVar[str] = (
        "count: lmms-eval; file and licence: hub commits; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1837
    files: ClassVar[tuple[str, ...]] = ("test_Video-Holmes.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "Question ID",
        "video": "file",
        "question": "Question",
        "options": "texts",
        "choice": "Answer",
    }
    cluster: ClassVar[str] = "video ID"
    groups: ClassVar[tuple[str, ...]] = ("Question Type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Question: {question}\n{options}\nSelect the best answer to the following "
            "multiple-choice question based on the video. Respond with only the letter (A, B, C, "
            "D, E, or F) of the correct option.",
            max_tokens=64,
            scorer="letter_mmmu",
            unread="expected",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
    known: ClassVar[tuple[Known, ...]] = (
        Known(
            "Video-R1-7B", 36.5, "Video-Holmes's own", "README.md of tulerfeng/Video-R1 at 59d65c3"
        ),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, and the options in the order of their letters."""
        texts = [row["Options"][letter] for letter in sorted(row["Options"])]
        return {**row, "file": f"videos_cropped/{row['video ID']}.mp4", "texts": texts}
