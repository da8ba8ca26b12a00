"""NExT-GQA: questions about a video, answered and proved by a span of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEOCHAT_GQA


@dataclass(frozen=True)
class NextGqa(Benchmark):
    """NExT-GQA's test split: Acc@GQA, the share of right letters whose span has an IoP of 0.5.

    A span of no length inside the true one has IoP 1; strict asks for an IoU of 0.5. NExT-GQA scores one
    span a question: of several stated ones the hull. VideoChat-R1 gives an ill-formed `<glue>` the IoU
    of the row before; here it has 0.

    Source: Xiao et al. 2024, arXiv 2309.01327, code/TempGQA/eval_ground.py; VideoChat-R1
    src_eval/evaluate_gqa.py, whose prompt and reading both protocols have.
    """

    origin: ClassVar[str] = "https://github.com/OpenGVLab/VideoChat-R1"
    licence: ClassVar[str] = "annotations: MIT; videos: YFCC100M's licences"
    hub: ClassVar[str] = (
        "OpenGVLab/VideoChat-R1 (Annotations/NextGQA/nextgqa_test.json), videos of NExT-QA"
    )
    checked: ClassVar[str] = "count and columns: counted in the file at 73b2ea9; 2026-11"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 5553
    files: ClassVar[tuple[str, ...]] = ("nextgqa_test.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
        "spans": "glue",
    }
    cluster: ClassVar[str] = "video"
    groups: ClassVar[tuple[str, ...]] = ("type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "next_gqa@63772e0",
            ask=VIDEOCHAT_GQA,
            max_tokens=2048,
            scorer="next_gqa",
            template="think_answer_glue",
            whole=True,
            unit="percent",
            also=("answered", "iop", "iop_at_0.3", "iop_at_0.5", "iou", "iou_at_0.3", "iou_at_0.5"),
        ),
        Official(
            "videochat_r1@73b2ea9",
            ask=VIDEOCHAT_GQA,
            max_tokens=2048,
            scorer="gqa_videochat",
            template="think_answer_glue",
            whole=True,
            also=("iou",),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "choice", {"proof": 0.5}, also=("answered", "iop", "iou", "iou_at_0.5")
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, the options as listed and without letters, and the right letter."""
        listed, letter = str([*row["options"]]), str(row["answer"]).strip("()")
        texts = [str(option).partition(") ")[2] for option in row["options"]]
        return {
            **row,
            "file": f"NExTVideo/{row['video']}",
            "listed": listed,
            "texts": texts,
            "letter": letter,
        }
