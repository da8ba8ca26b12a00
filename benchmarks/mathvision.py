"""MathVision: problems of mathematical competitions with figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mathvision(Benchmark):
    """MathVision's test split, in 16 subjects and five levels; `mathvision:testmini` has 304 of the problems.

    In lmms-eval's reasoning tasks a judge decides every answer; without one only an answer
    that is the truth to the letter is sure to be right, which is the lower bound here. Its other tasks
    evaluate an answer as Python code, which is not done here.

    Source: Wang et al. 2024, arXiv 2402.14804; lmms-eval tasks/mathvision.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MathLLMs/MathVision"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "MathLLMs/MathVision"
    checked: ClassVar[str] = "counts, columns and licence: hub card; prompt: lmms-eval; 2026-11"
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
            "Choices: {options}",
            ask_open='Please solve the problem step by step and put your answer in one "\\boxed{}".'
            "{question}",
            max_tokens=16384,
            scorer="equal_text",
            judge="gpt-4o-2024-11-20",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add what an answer is judged by: the option's letter, or the text of an open answer."""
        listed = [*row["options"]] or None
        letter, text = (row["answer"], None) if listed else (None, row["answer"])
        judged_by = None if listed else "math"
        return {**row, "listed": listed, "letter": letter, "text": text, "judged_by": judged_by}
