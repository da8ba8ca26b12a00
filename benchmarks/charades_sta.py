"""Charades-STA: when a sentence happens in a half-minute indoor video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEOCHAT_GROUND


@dataclass(frozen=True)
class CharadesSta(Benchmark):
    """Charades-STA's test split: mean IoU, and the share of rows from 0.3, 0.5 and 0.7 on (R@IoU).

    lmms-eval counts rows of the same video, sentence and times once; here each counts.

    Source: Gao et al. 2017, arXiv 1705.02101; lmms-eval tasks/charades_sta; VideoChat-R1
    src_eval/evaluate_grounding.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/charades_sta"
    licence: ClassVar[str] = "Charades: non-commercial research"
    hub: ClassVar[str] = "lmms-eval/charades_sta"
    checked: ClassVar[str] = (
        "columns: lmms-eval; the count is the literature's, not read off the hub; 2026-11"
    )
    count: ClassVar[int] = 3720
    columns: ClassVar[Mapping[str, str]] = {
        "video": "file", "question": "ask", "spans": "times",
    }  # fmt: skip
    cluster: ClassVar[str] = "clip"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Please find the visual event described by a sentence in the video, determining its "
            "starting and ending times. The format should be: 'The event happens in the start time "
            "- end time'. For example, The event 'person turn a light on' happens in the 24.3 - "
            "30.4 seonds. Now I will give you the textual sentence: {caption}. "
            "Please return its start time and end time.",
            max_tokens=50,
            scorer="span_iou",
            unit="percent",
            also=("recall_at_0.3", "recall_at_0.5", "recall_at_0.7"),
        ),
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
        """Add the video's folder, our question, and the times as a list of spans."""
        sentence = str(row["caption"]).strip().rstrip(".")
        added = {"file": f"Charades_v1_480/{row['video']}", "clip": row["video"]}
        question = f"When does this happen in the video: {sentence}?"
        added["sentence"] = row["caption"]
        return {**row, **added, "ask": question, "times": [list(row["timestamp"])]}
