"""MathVerse: geometry and functions, the same problem with more or less of it in the figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mathverse(Benchmark):
    """MathVerse's testmini: 788 problems in five versions.

    lmms-eval has a judge decide every answer; without one only an answer that is the truth to the
    letter is sure to be right, which is the lower bound here.

    Source: Zhang et al. 2024, arXiv 2403.14624; lmms-eval tasks/mathverse.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/AI4Math/MathVerse"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "CaraJ/MathVerse-lmmseval (config testmini)"
    checked: ClassVar[str] = (
        "count and versions: EvalScope's page math_verse; columns: lmms-eval, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "testmini"
    count: ClassVar[int] = 3940
    columns: ClassVar[Mapping[str, str]] = {
        "id": "sample_index", "image": "image", "question": "query_wo", "answer": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "problem_index"
    groups: ClassVar[tuple[str, ...]] = ("problem_version", "question_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=16384,
            scorer="equal_text",
            judge="gpt-4o-2024-11-20",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})
