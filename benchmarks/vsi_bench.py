"""VSI-Bench: distances, sizes, counts and directions in videos of rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Known, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER, VIDEO_R1_NUMBER


@dataclass(frozen=True)
class VsiBench(Benchmark):
    """VSI-Bench's test split: the mean of eight kinds of question, that of directions over three levels.

    Numbers are scored by mean relative accuracy (MRA). Video-R1 prints the mean of choices and that of
    numbers apart: the group `form`.

    Source: Yang et al. 2024, arXiv 2412.14171; lmms-eval tasks/vsibench; Video-R1 src/eval_bench.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/nyu-visionx/VSI-Bench"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "nyu-visionx/VSI-Bench"
    checked: ClassVar[str] = "count, columns and licence: hub card and a copy's card; 2026-11"
    count: ClassVar[int] = 5130
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
        "number": "quantity",
        "rewards": "judged_by",
    }
    cluster: ClassVar[str] = "scene_name"
    groups: ClassVar[tuple[str, ...]] = ("question_type", "form")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="These are frames of a video.\n{question}\nOptions:\n{options}\nAnswer with the "
            "option's letter from the given choices directly.",
            ask_open="These are frames of a video.\n{question}\nPlease answer the question using a single "
            "word or phrase.",
            max_tokens=16,
            scorer="vsi",
            aggregate="mean_of_groups_of_parts",
            by="part",
        ),
        Official(
            "video_r1@59d65c3",
            ask=VIDEO_R1_LETTER,
            ask_open=VIDEO_R1_NUMBER,
            max_tokens=1024,
            scorer="video_r1",
            template="think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="mean_of_groups_of_parts", by="part")
    known: ClassVar[tuple[Known, ...]] = (
        Known(
            "Video-R1-7B, 32 frames", 35.8, "video_r1@59d65c3", "README.md of tulerfeng/Video-R1"
        ),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options without letters, and by what a number is judged."""
        texts = [
            str(option).partition(". ")[2] or str(option) for option in row["options"] or ()
        ] or None
        kind, truth = str(row["question_type"]), row["ground_truth"]
        parts = kind.rpartition("_") if kind.startswith("object_rel_direction_") else (kind, "", "")
        number = [{"verifier": "regression", "options": {"measure": "mra"}}]
        return {
            **row,
            "name": str(row["id"]),
            "file": f"{row['dataset']}/{row['scene_name']}.mp4",
            "texts": texts,
            "letter": truth if texts else None,
            "quantity": None if texts else float(truth),
            "judged_by": None if texts else number,
            "form": "choice" if texts else "number",
            "part": f"{parts[0]}/{parts[2]}",
        }
