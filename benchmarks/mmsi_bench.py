"""MMSI-Bench: space seen in several images, one of which alone never tells the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_BACKQUOTED = (
    "Answer with the option's letter from the given choices directly. Enclose the option's letter "
    "within ``."
)


@dataclass(frozen=True)
class MmsiBench(Benchmark):
    """MMSI-Bench's 1,000 questions; the question lists the options, and images come first.

    VLMEvalKit, whose table has the options apart, puts a comma behind the last one. Its circular set
    is another benchmark.

    Source: Yang et al. 2025, arXiv 2505.23764; lmms-eval tasks/mmsi_bench, VLMEvalKit
    MMSIBench_wo_circular.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/RunsenXu/MMSI-Bench"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "RunsenXu/MMSI-Bench"
    checked: ClassVar[str] = (
        "count, columns, file, licence and how options are listed: InternRobotics/MMSI-Bench; split: "
        "lmms-eval; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1000
    files: ClassVar[tuple[str, ...]] = ("MMSI_Bench.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "asked",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("question_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n" + _BACKQUOTED,
            max_tokens=2048,
            scorer="letter_mmsi",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}, \n" + _BACKQUOTED,
            max_tokens=2048,
            scorer="letter_spatial_vlmeval",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Strip the question, as the harness does."""
        return {**row, "asked": str(row["question"]).strip()}
