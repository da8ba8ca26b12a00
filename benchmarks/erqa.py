"""ERQA: embodied reasoning with one or more images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Erqa(Benchmark):
    """ERQA's 400 questions; the question holds the options.

    Source: Gemini Robotics team 2025, arXiv 2503.20020; lmms-eval tasks/erqa.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/FlagEval/ERQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "FlagEval/ERQA"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 400
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "images",
        "question": "question",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("question_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=1024,
            scorer="letter_lmms",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
