"""TVGBench: when something happens in a video, by eleven kinds of query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import TIME_R1_GROUND


@dataclass(frozen=True)
class Tvgbench(Benchmark):
    """TVGBench: mean IoU, and the share of rows above 0.3, 0.5 and 0.7 (R1@m).

    Of 252 rows a part of the video is asked, from `start` to `end`, in whose time the answer is; Time-R1's
    loader hands the part on under names that its reader does not look for, so that its model is shown the
    whole video. Time-R1 counts what is above a threshold, strict from it on. Its rule reads the last
    `a to b` of the whole completion, be it in the thought. In 27 rows the true end is later than that of
    the video, by up to 5 s.

    Source: Wang et al. 2025, arXiv 2503.13377; xiaomi-research/time-r1 evaluate.py and
    src/vllm_inference (eval_all.py, data).
    """

    origin: ClassVar[str] = "https://github.com/xiaomi-research/time-r1"
    licence: ClassVar[str] = "annotations: Apache-2.0; videos: that of each of their data sets"
    hub: ClassVar[str] = (
        "Boshenxx/TimeR1-Dataset (videos: tvgbench_data), with tvgbench.json of xiaomi-research/time-r1"
    )
    checked: ClassVar[str] = (
        "count, columns and licence: counted in xiaomi-research/time-r1's tvgbench.json at 7f2b594; "
        "2026-11; folder of the videos not"
    )
    count: ClassVar[int] = 800
    files: ClassVar[tuple[str, ...]] = ("tvgbench.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "part",
        "question": "ask",
        "spans": "times",
    }
    cluster: ClassVar[str] = "path"
    groups: ClassVar[tuple[str, ...]] = ("qsemtype", "source_name")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "time_r1@7f2b594",
            ask=TIME_R1_GROUND,
            max_tokens=1024,
            scorer="moment_videochat",
            template="think_answer",
            whole=True,
            system="You are a helpful assistant.",
            unit="percent",
            also=("recall_above_0.3", "recall_above_0.5", "recall_above_0.7"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "temporal_iou",
        {"union": "single"},
        also=("recall_at_0.3", "recall_at_0.5", "recall_at_0.7"),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the part of the video, our question, the times as a list of spans, and the source."""
        file = "/".join(row["path"].split("/")[-2:])
        start, end = (float(time) for time in row["answer"].split("-"))
        return {
            **row,
            "part": {"path": file, "start": row["start"], "end": row["end"]},
            "sentence": row["question"],
            "ask": f"When does this happen in the video: {row['question'].strip().rstrip('.')}?",
            "times": [[start, end]],
            "source_name": row["bins"]["dataset"],
        }
