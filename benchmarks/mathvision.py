"""MathVision: problems of mathematical competitions with figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mathvision(Benchmark):
    """MathVision's test split, in 16 subjects and five levels; `mathvision:testmini` has 304 of the problems.

    The official number is that of lmms-eval's `mathvision_test`, which needs no judge. It computes
    values where the harness runs an answer as Python code, so an answer beyond arithmetic is right only
    to the letter.

    Source: Wang et al. 2024, arXiv 2402.14804; lmms-eval tasks/mathvision.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MathLLMs/MathVision"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "MathLLMs/MathVision"
    checked: ClassVar[str] = (
        "counts, columns and licence: hub card; prompt and rule: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 3040
    splits: ClassVar[Mapping[str, int]] = {"testmini": 304}
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "decoded_image",
        "question": "question",
        "options": "listed",
        "choice": "letter",
        "answer": "text",
        "rewards": "judged_by",
    }
    groups: ClassVar[tuple[str, ...]] = ("subject", "level")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask='Please solve the problem step by step and put your answer in one "\\boxed{}".{question}\n'
            "Choices: {options}\nAnswer the question with the option's letter from the given choices "
            "directly.",
            ask_open='Please solve the problem step by step and put your answer in one "\\boxed{}".'
            "{question}",
            max_tokens=16384,
            scorer="mathvision",
            unit="percent",
            task="mathvision_test",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add what an answer is judged by: the option's letter, or the text of an open answer."""
        listed = [*row["options"]] or None
        letter, text = (row["answer"], None) if listed else (None, row["answer"])
        judged_by = None if listed else "math"
        return {**row, "listed": listed, "letter": letter, "text": text, "judged_by": judged_by}
