"""TempCompass: questions with yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class TempcompassYesNo(Benchmark):
    """TempCompass's questions with yes or no, five aspects of time.

    Source: Liu et al. 2024, arXiv 2403.00476; lmms-eval tasks/tempcompass (tempcompass_yes_no).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/TempCompass"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/TempCompass"
    checked: ClassVar[str] = (
        "files: hub file list of lmms-lab/TempCompass; columns: lmms-eval; 2026-11; count not"
    )
    count: ClassVar[int] = 2453
    files: ClassVar[tuple[str, ...]] = ("yes_no",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "question",
        "answer": "answer",
    }
    cluster: ClassVar[str] = "video_id"
    groups: ClassVar[tuple[str, ...]] = ("dim",)
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
