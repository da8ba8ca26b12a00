"""NaturalBench: two questions about two images, each with both answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Naturalbench(Benchmark):
    """NaturalBench's 1,900 groups of four questions; G, Q and I accuracy are of wholes.

    Source: Li et al. 2024, arXiv 2410.14669; lmms-eval tasks/naturalbench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/BaiqiL/NaturalBench-lmms-eval"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "BaiqiL/NaturalBench-lmms-eval"
    checked: ClassVar[str] = (
        "columns: lmms-eval; licence: hub card of BaiqiL/NaturalBench; count: hub list (7.6k); 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 7600
    columns: ClassVar[Mapping[str, str]] = {
        "id": "Index",
        "image": "Image",
        "question": "Question",
        "answer": "right",
    }
    cluster: ClassVar[str] = "group"
    groups: ClassVar[tuple[str, ...]] = ("Question_Type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question} {suffix}",
            max_tokens=16,
            scorer="naturalbench",
            also=(
                "all_of_groups by group",
                "all_of_groups by pair_of_question",
                "all_of_groups by pair_of_image",
            ),
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {}, also=("all_of_groups by group",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the truth, which the position of a row states (yes, no, no, yes), and its wholes."""
        group, position = divmod(int(row["Index"]), 4)
        binary = row["Question_Type"] == "yes_no"
        letter = "Please output the letter corresponding to the correct option."
        return {
            **row,
            "right": ("yes", "no")[position in (1, 2)] if binary else "ABBA"[position],
            "suffix": "Please answer Yes or No." if binary else letter,
            "group": group,
            "pair_of_question": f"{group}/{position // 2}",
            "pair_of_image": f"{group}/{position % 2}",
        }
