"""HR-Bench 8K: small things in images of 8,000 pixels, each question with its options in four orders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.hr_bench_4k import HrBench4k


@dataclass(frozen=True)
class HrBench8k(HrBench4k):
    """HR-Bench's 200 questions on 8K images, four orders of the options each: the mean over the orders.

    Source: Wang et al. 2024, arXiv 2408.15556; lmms-eval tasks/hrbench, VLMEvalKit HRBench8K.
    """

    files: ClassVar[tuple[str, ...]] = ("hr_bench_8k.parquet",)
    officials: ClassVar[tuple[Official, ...]] = (
        HrBench4k.officials[0],
        replace(HrBench4k.officials[1], task="HRBenchDataset HRBench8K"),
    )
