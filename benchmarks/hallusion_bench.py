"""HallusionBench: illusions and hallucination, yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class HallusionBench(Benchmark):
    """HallusionBench's 951 questions with an image: accuracy of all, of whole figures and of whole questions.

    lmms-eval is not offered: a judge decides there, and what the judge calls unclear can count as right.

    Source: Guan et al. 2023, arXiv 2310.14566; VLMEvalKit HallusionBench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/HallusionBench"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/HallusionBench"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "image"
    count: ClassVar[int] = 951
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "question",
        "answer": "right",
    }
    cluster: ClassVar[str] = "set"
    groups: ClassVar[tuple[str, ...]] = ("category", "subcategory")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question} Please answer yes or no.",
            max_tokens=2048,
            scorer="yes_no_words",
            unit="percent",
            also=("all_of_groups by figure", "all_of_groups by asked"),
            task="ImageYORNDataset HallusionBench",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "yes_no", {}, also=("all_of_groups by figure", "all_of_groups by asked")
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the answer as a word, and what makes up a set, a figure and a question."""
        kind = f"{row['subcategory']}_{row['set_id']}"
        figure, asked = f"{kind}_{row['figure_id']}", f"{kind}_{row['question_id']}"
        right = "yes" if str(row["gt_answer"]) == "1" else "no"
        return {**row, "right": right, "set": kind, "figure": figure, "asked": asked}
