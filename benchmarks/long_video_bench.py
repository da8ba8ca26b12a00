"""LongVideoBench: questions that refer to moments of videos up to an hour long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class LongVideoBench(Benchmark):
    """LongVideoBench's validation split, by the video alone, without subtitles.

    lmms-eval counts each row twice, by duration and by category: the mean stays the same.

    Source: Wu et al. 2024, arXiv 2407.15754; lmms-eval tasks/longvideobench (longvideobench_val_v).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/longvideobench/LongVideoBench"
    licence: ClassVar[str] = "CC-BY-NC-SA-4.0"
    hub: ClassVar[str] = "longvideobench/LongVideoBench"
    checked: ClassVar[str] = "licence: hub card; columns: lmms-eval; 2026-11; count not"
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 1337
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "video_id"
    groups: ClassVar[tuple[str, ...]] = ("duration_group", "question_category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given choices "
            "directly.\n",
            max_tokens=32,
            scorer="letter_long_video",
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options that there are, and the right letter."""
        options = [row.get(f"option{number}") for number in range(5)]
        texts = [text for text in options if text not in (None, "N/A")]
        letter = "ABCDE"[int(row["correct_choice"])]
        return {**row, "file": f"videos/{row['video_path']}", "texts": texts, "letter": letter}
