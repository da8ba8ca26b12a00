"""We-Math: composed problems of mathematics, and each of their steps as a question of its own."""

from __future__ import annotations

import re
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

    VLMEvalKit's number is that without a judge. It lists the options of its own table; here they are
    split where the published text has a letter after a semicolon.

    Source: Qiao et al. 2024, arXiv 2407.01284; lmms-eval tasks/wemath, wemath_testmini_reasoning;
    VLMEvalKit dataset/utils/wemath.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/We-Math/We-Math"
    licence: ClassVar[str] = "CC BY-NC 4.0"
    hub: ClassVar[str] = "We-Math/We-Math"
    checked: ClassVar[str] = (
        "file and licence: hub pages; columns: lmms-eval; 525 problems, 1,215 steps: arXiv 2407.01284; "
        "2026-11"
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
        Official(
            "vlmevalkit@e8e78f0",
            ask="Question: {bare}\nOptions:\n{listed}",
            max_tokens=2048,
            scorer="wemath_vlmeval",
            aggregate="mastery_strict",
            by="part",
            also=("mastery_loose by part", "mean"),
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "choice", {}, "mastery_strict", "part", also=("mastery_loose by part", "mean")
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the options below the question, list them, and name the problem and which part is asked."""
        steps, _, part = str(row["key"]).partition("_")
        problem = f"{steps}/{row['ID']}"
        asked = f"{row['question']}\n{row['option']}".strip()
        texts = re.split(r"(?:^|[;；])\s*([A-H])[.．、]\s*", str(row["option"]).strip())[1:]
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return {
            **row,
            "problem": problem,
            "part": f"{problem}/{part}",
            "asked": asked,
            "bare": row["question"],
            "listed": "".join(f"{letter}. {text.rstrip('; ')}\n" for letter, text in pairs),
            "right": row["answer"],
        }
