"""LVBench: questions about videos of an hour and more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.data.multiple_choice import inline


@dataclass(frozen=True)
class Lvbench(Benchmark):
    """LVBench: 103 videos; the question holds its four options as `(A) text`.

    The number of frames decides. A question of several types counts in no group: the data list them.

    Source: Wang et al. 2024, arXiv 2406.08035; lmms-eval tasks/lvbench (task lvbench).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/LVBench"
    licence: ClassVar[str] = "CC-BY-NC-SA-4.0"
    hub: ClassVar[str] = "lmms-eval/LVBench"
    checked: ClassVar[str] = (
        "count: arXiv 2406.08035; licence: hub card of zai-org/LVBench; columns: lmms-eval and other "
        "readers of lmms-lab/LVBench; 2026-11; names of the files not"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1549
    columns: ClassVar[Mapping[str, str]] = {
        "id": "uid",
        "video": "video_path",
        "question": "question",
        "options": "texts",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "key"
    groups: ClassVar[tuple[str, ...]] = ("type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question with the option letter",
            max_tokens=16,
            scorer="letter_lmms",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options that the question lists."""
        return {**row, "uid": str(row["uid"]), "texts": list(inline(row["question"])) or None}
