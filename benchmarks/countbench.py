"""CountBenchQA: count from 2 to 10 objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Countbench(Benchmark):
    """CountBenchQA's test split by the task `countbench` of lmms-eval.

    Its task countbenchqa is not offered: it puts the caption, which states the number, into the prompt.
    VLMEvalKit finds the number anywhere in the answer, so that a list of digits is always right.

    Source: Paiss et al. 2023, arXiv 2302.12066; Beyer et al. 2024 (PaliGemma), arXiv 2407.07726.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/vikhyatk/CountBenchQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "vikhyatk/CountBenchQA"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    count: ClassVar[int] = 491
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "number": "number",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Look at the image carefully and count the objects. Answer with just a "
            "number, without any additional text. {question}",
            max_tokens=16,
            scorer="count_word",
            task="countbench",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question} Note that: answer with a number directly e.g. 3. Do not "
            "include any additional text.",
            max_tokens=2048,
            scorer="substring",
            unit="percent",
            task="CountBenchQA CountBenchQA",
        ),
    )
    strict: ClassVar[Strict] = Strict("count", {})
