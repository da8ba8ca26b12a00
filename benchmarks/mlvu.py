"""MLVU: questions about videos of minutes to hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mlvu(Benchmark):
    """MLVU's development split: the mean of seven tasks; the question holds the options.

    Source: Zhou et al. 2024, arXiv 2406.04264; lmms-eval tasks/mlvu (task mlvu_dev).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/sy1998/MLVU_dev"
    licence: ClassVar[str] = "CC-BY-NC-SA-4.0"
    hub: ClassVar[str] = "sy1998/MLVU_dev"
    checked: ClassVar[str] = (
        "files: hub file list; columns: a copy's card; licence: hub card of sy1998/MLVU; 2026-11; count not"
    )
    count: ClassVar[int] = 2174
    files: ClassVar[tuple[str, ...]] = ("mlvu",)
    columns: ClassVar[Mapping[str, str]] = {
        "video": "video_name",
        "question": "question",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "file"
    groups: ClassVar[tuple[str, ...]] = ("task_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nOnly give the best option.\nBest option: (",
            max_tokens=16,
            scorer="letter_lmms",
            aggregate="mean_of_groups",
            by="task_type",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="mean_of_groups", by="task_type")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the video as what rows share."""
        return {**row, "file": row["video_name"]}
