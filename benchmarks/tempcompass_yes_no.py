"""TempCompass: questions with yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Official, Strict
from vlmrl.benchmarks.tempcompass import Tempcompass


@dataclass(frozen=True)
class TempcompassYesNo(Tempcompass):
    """TempCompass's questions with yes or no, five aspects of time.

    Source: Liu et al. 2024, arXiv 2403.00476; lmms-eval tasks/tempcompass (tempcompass_yes_no).
    """

    count: ClassVar[int] = 2453
    files: ClassVar[tuple[str, ...]] = ("yes_no",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "question",
        "answer": "answer",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nPlease answer yes or no:",
            max_tokens=128,
            scorer="tempcompass_yes_no",
            unit="percent",
            judge="gpt-3.5-turbo-1106",
        ),
    )
    strict: ClassVar[Strict] = Strict("yes_no", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file."""
        return {**row, "file": f"videos/{row['video_id']}.mp4"}
