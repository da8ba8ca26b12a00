"""ChartQA: questions about charts, half of them written by people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Chartqa(Benchmark):
    """ChartQA's test split; both harnesses let a number miss by 5 %, a year too.

    Source: Masry et al. 2022, arXiv 2203.10244; lmms-eval tasks/chartqa, VLMEvalKit ImageVQADataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/ChartQA"
    licence: ClassVar[str] = "GPL-3.0"
    hub: ClassVar[str] = "lmms-lab-encoder/ChartQA"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    count: ClassVar[int] = 2500
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer the question with a single word.",
            max_tokens=16,
            scorer="relaxed_lmms",
            task="chartqa",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nAnswer the question using a single word or phrase.",
            max_tokens=2048,
            scorer="relaxed_vlmeval",
            unit="percent",
            task="ImageVQADataset ChartQA_TEST",
        ),
    )
    strict: ClassVar[Strict] = Strict("chart", {})
