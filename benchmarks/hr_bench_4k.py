"""HR-Bench 4K: small things in images of 4,000 pixels, each question with its options in four orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class HrBench4k(Benchmark):
    """HR-Bench's 200 questions on 4K images, four orders of the options each: the mean over the orders.

    The orders are averaged; a question need not be right in all of them. Both harnesses ask a judge
    where their rule finds no letter; here such an answer is wrong.

    Source: Wang et al. 2024, arXiv 2408.15556; lmms-eval tasks/hrbench, VLMEvalKit HRBench4K.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/DreamMr/HR-Bench"
    licence: ClassVar[str] = "other: see the data set's page"
    hub: ClassVar[str] = "DreamMr/HR-Bench"
    checked: ClassVar[str] = (
        "files and licence: hub file list; columns and rule: lmms-eval, 2026-11"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 800
    files: ClassVar[tuple[str, ...]] = ("hr_bench_4k.parquet",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "index", "image": "image", "question": "question", "options": "listed",
        "choice": "answer",
    }  # fmt: skip
    cluster: ClassVar[str] = "asked"
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer the option letter directly.",
            max_tokens=128,
            scorer="letter_hr_bench",
            aggregate="mean_of_groups",
            by="cycle_category",
            judge="gpt-4o-2024-11-20",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="Question: {question}\nOptions:\n{options}\nPlease select the correct answer from "
            "the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            aggregate="mean_of_groups",
            by="cycle_category",
            judge="chatgpt-0125",
            task="HRBenchDataset HRBench4K",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="mean_of_groups", by="cycle_category")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options; the orders of one question share its text, which the intervals need."""
        listed = [row[letter] for letter in "ABCD" if row.get(letter) not in (None, "", "nan")]
        return {**row, "listed": listed, "asked": str(row["question"]).strip()}
