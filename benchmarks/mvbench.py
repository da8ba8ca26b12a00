"""MVBench: 20 tasks about what changes in a short video."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER
from vlmrl.benchmarking.rows import file_of, letter_of

FOLDERS = {
    "action_antonym": "ssv2_video_mp4",
    "action_count": "perception/videos",
    "action_localization": "sta/sta_video_segment",
    "action_prediction": "star/Charades_segment",
    "action_sequence": "star/Charades_segment",
    "character_order": "perception/videos",
    "counterfactual_inference": "clevrer/video_validation",
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa/video_fps3_hq_segment",
    "fine_grained_action": "Moments_in_Time_Raw/videos",
    "fine_grained_pose": "nturgbd_convert",
    "moving_attribute": "clevrer/video_validation",
    "moving_count": "clevrer/video_validation",
    "moving_direction": "clevrer/video_validation",
    "object_existence": "clevrer/video_validation",
    "object_interaction": "star/Charades_segment",
    "object_shuffle": "perception/videos",
    "scene_transition": "scene_qa/video",
    "state_change": "perception/videos",
    "unexpected_action": "FunQA_test/test",
}
"""Folder of the videos by task, in the folder `video`, as lmms-eval unpacks them."""


@dataclass(frozen=True)
class Mvbench(Benchmark):
    """MVBench: the mean of its 20 tasks, 200 questions each.

    lmms-eval leaves empty answers out of the denominator; strict counts them as wrong. The task
    episodic_reasoning is published as folders of images, which are not read: make a video of each.

    Source: Li et al. 2023, arXiv 2311.17005; lmms-eval tasks/mvbench; Video-R1 src/eval_bench.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/OpenGVLab/MVBench"
    licence: ClassVar[str] = "MIT; the videos: that of each of their data sets"
    hub: ClassVar[str] = "OpenGVLab/MVBench"
    checked: ClassVar[str] = (
        "id, files and licence: hub file list; count: evalscope 1.14.1; columns: lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 4000
    files: ClassVar[tuple[str, ...]] = tuple(f"json/{task}.json" for task in FOLDERS)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "question",
        "options": "candidates",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "file_name"
    groups: ClassVar[tuple[str, ...]] = ("task",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Question:{question}\nOption:\n{marked}\nOnly give the best option.\n",
            max_tokens=16,
            scorer="letter_mvbench",
            aggregate="mean_of_groups",
            by="task",
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
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="mean_of_groups", by="task")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the task (the file's name), the video's file, the options as `(A) text`, and the letter."""
        task = file_of(row).stem
        lettered = zip(string.ascii_uppercase, row["candidates"], strict=False)
        marked = "\n".join(f"({letter}) {text}" for letter, text in lettered)
        file = f"video/{FOLDERS[task]}/{row['video']}"
        letter = letter_of(row, "answer", "candidates")
        names = {"task": task, "file": file, "file_name": row["video"]}
        return {**row, **names, "marked": marked, "letter": letter}
