"""LogicVista: logical reasoning about patterns, diagrams, tables and mechanics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import LMMS_REASONING_SYSTEM


@dataclass(frozen=True)
class Logicvista(Benchmark):
    """LogicVista's 448 questions, whose options stand in the question or the image.

    Where several letters are right, lmms-eval compares one of them; strict wants all.

    Source: Xiao et al. 2024, arXiv 2407.04973; lmms-eval tasks/logicvista.
    """

    origin: ClassVar[str] = "https://github.com/Yijia-Xiao/LogicVista"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lscpku/LogicVista"
    checked: ClassVar[str] = (
        "count: arXiv 2407.04973; columns: lmms-eval; several letters: a published evaluation of the copy; "
        "2026-11; licence: unchecked"
    )
    count: ClassVar[int] = 448
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "question",
        "answer": "answer",
        "choice": "letter",
        "labels": "letters",
        "rewards": "judged_by",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=49152,
            scorer="reasoned_lmms",
            system=LMMS_REASONING_SYSTEM,
            template="think_answer",
            whole=True,
            task="logicvista_reasoning",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the letters of the truth: one is judged as a choice, several as a list."""
        letters = re.findall(r"[A-Z]", str(row["answer"]))
        several = len(letters) > 1
        by_list = [{"verifier": "labels", "options": {"measure": "exact"}}]
        return {
            **row,
            "question": str(row["question"]).strip(),
            "letter": None if several else letters[0],
            "letters": letters if several else None,
            "judged_by": by_list if several else None,
        }
