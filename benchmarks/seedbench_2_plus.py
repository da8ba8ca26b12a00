"""SEED-Bench-2-Plus: charts, maps and web pages with much text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Seedbench2Plus(Benchmark):
    """SEED-Bench-2-Plus's 2,277 questions.

    Source: Li et al. 2024, arXiv 2404.16790; lmms-eval tasks/seedbench_2_plus.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/doolayer/SEED-Bench-2-Plus"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "doolayer/SEED-Bench-2-Plus"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 2277
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("question_image_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=16,
            scorer="letter_first",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options; one that is the name of a file is shown as lmms-eval shows it."""
        listed = [str(row[f"choice_{letter}"]) for letter in "ABCD"]
        listed = ["<image>" if "jpg" in option or "png" in option else option for option in listed]
        return {**row, "listed": listed}
