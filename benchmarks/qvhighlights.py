"""QVHighlights: which moments of a video a sentence describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import TIME_R1_GROUND


@dataclass(frozen=True)
class Qvhighlights(Benchmark):
    """QVHighlights's validation split: R1@0.5, R1@0.7 and the mean average precision of moments.

    moment_detr scores moments, not texts: we ask in Time-R1's words, and take every `a to b` of the
    answer as one, ranked as listed, since no model states how sure it is. R1 is that of the first moment
    and the true one it overlaps most. A query without an answer, on which their code ends in an error, is
    wrong. Their precision has a moment that runs backwards hit a true one of the same length. Strict
    measures the time that all true moments cover, so that of several all have to be listed. Highlights
    (HIT@1) are left out.

    Their metrics of their 1,550 sample predictions are met to the last digit.

    Source: Lei et al. 2021, arXiv 2107.09609; moment_detr standalone_eval.
    """

    origin: ClassVar[str] = "https://github.com/jayleicn/moment_detr"
    licence: ClassVar[str] = "CC-BY-NC-SA-4.0"
    hub: ClassVar[str] = (
        "https://github.com/jayleicn/moment_detr (data), videos: see its data/README.md"
    )
    checked: ClassVar[str] = (
        "count, columns and licence: counted in data/highlight_val_release.jsonl at b7e553a; 2026-11; "
        "folder of the videos not"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 1550
    files: ClassVar[tuple[str, ...]] = ("data/highlight_val_release.jsonl",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "ask",
        "spans": "times",
    }
    cluster: ClassVar[str] = "vid"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "moment_detr@b7e553a",
            ask=TIME_R1_GROUND,
            max_tokens=1024,
            scorer="moments",
            template="think_answer",
            aggregate="recall_at_0.5",
            unit="percent",
            also=("recall_at_0.7", "moment_ap", "moment_ap_at_0.5", "moment_ap_at_0.75"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "temporal_iou",
        {"union": "single"},
        aggregate="recall_at_0.5",
        also=("recall_at_0.7", "mean"),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the video's file, our question, and the times as a list of spans."""
        return {
            **row,
            "name": str(row["qid"]),
            "file": f"videos/{row['vid']}.mp4",
            "sentence": row["query"],
            "ask": f"When does this happen in the video: {row['query'].strip().rstrip('.')}?",
            "times": [[*map(float, times)] for times in row["relevant_windows"]],
        }
