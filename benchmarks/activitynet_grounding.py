"""ActivityNet Captions: when a sentence happens in a two-minute video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEOCHAT_GROUND


@dataclass(frozen=True)
class ActivitynetGrounding(Benchmark):
    """ActivityNet Captions as VideoChat-R1 evaluates it (val_2): mean IoU, and R@IoU from 0.3, 0.5, 0.7.

    VideoChat-R1's rule reads the last `a to b` of the whole completion, be it in the thought.

    Source: Krishna et al. 2017, arXiv 1705.00754; VideoChat-R1 src_eval/evaluate_grounding.py.
    """

    origin: ClassVar[str] = "https://github.com/OpenGVLab/VideoChat-R1"
    licence: ClassVar[str] = "annotations: see the authors' page; videos: YouTube's terms"
    hub: ClassVar[str] = (
        "OpenGVLab/VideoChat-R1 (Annotations/ActivityNet), videos of ActivityNet 1.3"
    )
    checked: ClassVar[str] = "count and form: counted in the file at 73b2ea9; 2026-11"
    count: ClassVar[int] = 17031
    layout: ClassVar[Literal["table", "coco", "moments"]] = "moments"
    files: ClassVar[tuple[str, ...]] = ("activitynet_annotation/test.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "ask",
        "spans": "times",
    }
    cluster: ClassVar[str] = "video"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "videochat_r1@73b2ea9",
            ask=VIDEOCHAT_GROUND,
            max_tokens=2048,
            scorer="moment_videochat",
            template="think_answer",
            whole=True,
            also=("recall_at_0.3", "recall_at_0.5", "recall_at_0.7"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "temporal_iou",
        {"union": "single"},
        also=("recall_at_0.3", "recall_at_0.5", "recall_at_0.7"),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, our question, and the times as a list of spans."""
        ask = f"When does this happen in the video: {row['sentence'].strip().rstrip('.')}?"
        added = {"name": f"{row['video']}-{row['number']}", "file": f"videos/{row['video']}.mp4"}
        return {**row, **added, "ask": ask, "times": [row["timestamp"]]}
