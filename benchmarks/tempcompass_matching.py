"""TempCompass: pairs of captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.tempcompass import Tempcompass


@dataclass(frozen=True)
class TempcompassMatching(Tempcompass):
    """TempCompass's pairs of captions, five aspects of time.

    Source: Liu et al. 2024, arXiv 2403.00476; lmms-eval tasks/tempcompass (tempcompass_caption_matching).
    """

    count: ClassVar[int] = 1503
    files: ClassVar[tuple[str, ...]] = ("caption_matching",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "ask",
        "options": "texts",
        "choice": "text",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nPlease directly give the best option:",
            max_tokens=128,
            scorer="tempcompass_matching",
            unit="percent",
            judge="gpt-3.5-turbo-1106",
        ),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, and the captions without their names."""
        lines = [line for line in row["question"].split("\n")[1:] if line.strip()]
        texts = [line.partition(": ")[2] for line in lines]
        text = str(row["answer"]).partition(": ")[2]
        file = f"videos/{row['video_id']}.mp4"
        return {**row, "ask": row["question"], "file": file, "texts": texts, "text": text}
