"""SuperCLEVR-200: how many items are in the image, as R1-V counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Superclevr(Benchmark):
    """The 200 counting questions of R1-V.

    Source: Deep Agent 2025, R1-V, src/eval at bbbbe3d.
    """

    origin: ClassVar[str] = "https://github.com/Deep-Agent/R1-V"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = (
        "Deep-Agent/R1-V (src/eval/prompts/superclevr_test200_counting_problems.jsonl)"
    )
    checked: ClassVar[str] = "count and columns: R1-V at bbbbe3d, 2026-11; licence: unchecked"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 200
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image_path",
        "question": "question",
        "number": "ground_truth",
    }
    files: ClassVar[tuple[str, ...]] = ("superclevr_test200_counting_problems.jsonl",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "r1_v@bbbbe3d",
            ask="{question} First output the thinking process in <think> </think> and "
            "final answer (number) in <answer> </answer> tags.",
            max_tokens=256,
            scorer="count_tagged",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("count", {})
