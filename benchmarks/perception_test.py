"""Perception Test: memory, physics and abstraction in short staged videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class PerceptionTest(Benchmark):
    """The Perception Test's validation questions with three options each.

    Source: Patraucean et al. 2023, arXiv 2305.13786; lmms-eval tasks/perceptiontest/val.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/PerceptionTest_Val"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/PerceptionTest_Val"
    checked: ClassVar[str] = (
        "count and columns: hub card of lmms-lab/PerceptionTest_Val; 2026-11; licence not"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 19140
    files: ClassVar[tuple[str, ...]] = ("mc_question_val",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "video": "file",
        "question": "question",
        "options": "options",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "video_name"
    groups: ClassVar[tuple[str, ...]] = ("area", "reasoning")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given choices "
            "directly.",
            max_tokens=32,
            scorer="letter_perception",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file and the right letter."""
        letter = "ABC"[int(row["answer_id"])]
        return {**row, "file": f"videos/{row['video_name']}.mp4", "letter": letter}
