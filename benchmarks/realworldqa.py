"""RealWorldQA: questions about photos taken from cars and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Realworldqa(Benchmark):
    """RealWorldQA's test split; the question says itself how to answer.

    Source: xAI 2024; lmms-eval tasks/realworldqa.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RealWorldQA"
    licence: ClassVar[str] = "CC BY-ND 4.0"
    hub: ClassVar[str] = "lmms-lab-encoder/RealWorldQA"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    count: ClassVar[int] = 765
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=16,
            scorer="real_world",
            task="realworldqa",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
