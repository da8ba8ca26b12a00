"""DynaMath: 501 questions of mathematics in ten variants each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmark_rules.mathematics import is_number
from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import LMMS_REASONING_SYSTEM


@dataclass(frozen=True)
class Dynamath(Benchmark):
    """DynaMath's ten variants of each question: the mean, and the share of questions right in all ten.

    The rows of a question share their `id`. Strict allows a number the 0.001 that DynaMath's authors
    allow.

    Source: Zou et al. 2024, arXiv 2411.00836; lmms-eval tasks/dynamath, dynamath_reasoning.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/DynaMath/DynaMath_Sample"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "kcz358/DynaMath"
    checked: ClassVar[str] = (
        "licence: hub card of DynaMath/DynaMath_Sample; count, 501 questions in ten variants, and answer "
        "types: published evaluations of the copy at c72be60; columns: lmms-eval; 2026-11"
    )
    count: ClassVar[int] = 5010
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "decoded_image",
        "question": "question",
        "answer": "text",
        "number": "number",
        "choice": "letter",
        "rewards": "judged_by",
    }
    cluster: ClassVar[str] = "id"
    groups: ClassVar[tuple[str, ...]] = ("subject", "knowledge_level")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=49152,
            scorer="reasoned_lmms",
            aggregate="mean_of_groups",
            by="id",
            also=("all_of_groups by id",),
            system=LMMS_REASONING_SYSTEM,
            template="think_answer",
            whole=True,
            task="dynamath_reasoning",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "exact", {}, "mean_of_groups", "id", also=("all_of_groups by id",)
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the truth as a number, a letter or a text, and by what an answer is judged."""
        text = str(row["ground_truth"])
        number = float(text) if is_number(text) else None
        letter = text.strip() if text.strip() in tuple("ABCDE") else None
        numeric = [{"verifier": "number", "options": {"tolerance": 0.001}}]
        judged_by = numeric if number is not None else ["choice"] if letter else None
        truth = {"text": text, "number": number, "letter": letter, "judged_by": judged_by}
        return {**row, **truth, "question": str(row["question"]).strip()}
