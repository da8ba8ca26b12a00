"""Quality Access: whether a video looks good, technically and aesthetically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEOCHAT_QA


@dataclass(frozen=True)
class QualityAccess(Benchmark):
    """VideoEval's Quality_Access as VideoChat-R1 evaluates it: low quality or high quality.

    Source: Li et al. 2024, VideoEval, arXiv 2407.06491; VideoChat-R1 src_eval/evaluate_cls_quality_c8.py.
    """

    origin: ClassVar[str] = "https://github.com/OpenGVLab/VideoChat-R1"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = (
        "OpenGVLab/VideoChat-R1 (Annotations/VideoEval/Quality_Access), videos of VideoEval"
    )
    checked: ClassVar[str] = "count and columns: counted in the file at 73b2ea9; 2026-11"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 724
    files: ClassVar[tuple[str, ...]] = ("annotations/Quality_Access_test.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file",
        "question": "instruction",
        "answer": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("right",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "videochat_r1@73b2ea9",
            ask=VIDEOCHAT_QA,
            max_tokens=2048,
            scorer="tagged_text",
            template="think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, and the right class as a group."""
        return {**row, "file": f"videos/{row['video']}", "right": row["answer"]}
