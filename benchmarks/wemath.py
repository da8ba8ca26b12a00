"""We-Math: composed problems of mathematics, and each of their steps as a question of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import LMMS_REASONING_SYSTEM


@dataclass(frozen=True)
class Wemath(Benchmark):
    """We-Math's testmini: 525 problems of two and three steps, and 1,215 questions about the steps.

    The number is We-Math's strict score: 1 for a problem that is right with all its steps, 1/2 for one
    that is wrong though its steps are right. The loose score and the share of right rows stand beside
    it. lmms-eval divides by 525 however many problems were asked, here by those that were.

    Source: Qiao et al. 2024, arXiv 2407.01284; lmms-eval tasks/wemath, wemath_testmini_reasoning.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/We-Math/We-Math"
    licence: ClassVar[str] = "CC BY-NC 4.0"
    hub: ClassVar[str] = "We-Math/We-Math"
    checked: ClassVar[str] = (
        "file and licence: hub pages; columns, and 525 composed problems: lmms-eval; 1,215 steps: "
        "arXiv 2407.01284; 2026-11"
    )
    split: ClassVar[str] = "testmini"
    count: ClassVar[int] = 1740
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image_path",
        "question": "asked",
        "choice": "answer",
        "answer": "right",
    }
    cluster: ClassVar[str] = "problem"
    groups: ClassVar[tuple[str, ...]] = ("key",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=49152,
            scorer="reasoned_lmms",
            aggregate="mastery_strict",
            by="part",
            also=("mastery_loose by part", "mean"),
            unit="percent",
            system=LMMS_REASONING_SYSTEM,
            template="think_answer",
            whole=True,
            task="wemath_testmini_reasoning",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "choice", {}, "mastery_strict", "part", also=("mastery_loose by part", "mean")
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the options below the question, and name the problem and which part of it is asked."""
        steps, _, part = str(row["key"]).partition("_")
        problem = f"{steps}/{row['ID']}"
        asked = f"{row['question']}\n{row['option']}".strip()
        named = {"problem": problem, "part": f"{problem}/{part}"}
        return {**row, **named, "asked": asked, "right": row["answer"]}
