"""TempCompass: questions with options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER


@dataclass(frozen=True)
class Tempcompass(Benchmark):
    """TempCompass's questions with options, five aspects of time.

    Source: Liu et al. 2024, arXiv 2403.00476; lmms-eval tasks/tempcompass (tempcompass_multi_choice);
    Video-R1 src/eval_bench.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/TempCompass"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/TempCompass"
    checked: ClassVar[str] = (
        "files: hub file list of lmms-lab/TempCompass; columns: lmms-eval; 2026-11; count not"
    )
    count: ClassVar[int] = 1580
    files: ClassVar[tuple[str, ...]] = ("multi-choice",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "video_id"
    groups: ClassVar[tuple[str, ...]] = ("dim",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nPlease directly give the best option:",
            max_tokens=128,
            scorer="tempcompass",
            unit="percent",
            judge="gpt-3.5-turbo-1106",
        ),
        Official(
            "video_r1@59d65c3",
            ask=VIDEO_R1_LETTER.replace("{question}", "{plain}"),
            max_tokens=1024,
            scorer="video_r1",
            template="think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file and the options, which the question lists."""
        plain, *lines = row["question"].split("\n")
        listed = [line for line in lines if line.strip()]
        texts = [line.partition(". ")[2] for line in listed]
        letter = str(row["answer"])[:1]
        file = f"videos/{row['video_id']}.mp4"
        return {**row, "file": file, "plain": plain, "texts": texts, "letter": letter}
