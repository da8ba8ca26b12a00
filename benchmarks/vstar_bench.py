"""V*: small things in large images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class VstarBench(Benchmark):
    """V*'s 191 questions; the question holds the options.

    Source: Wu and Xie 2023, arXiv 2312.14135; lmms-eval tasks/vstar_bench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/vstar-bench"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/vstar-bench"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 191
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "stem",
        "options": "listed",
        "choice": "label",
    }
    groups: ClassVar[tuple[str, ...]] = ("category",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=16,
            scorer="letter_vstar",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Split the question into its stem and its options."""
        text = row["text"]
        listed = re.findall(r"\([A-D]\)\s*([^()]+?)(?=\s*\([A-D]\)|$)", text)
        stem = text.split("(A)")[0].strip() if listed else text
        return {**row, "stem": stem, "listed": [option.strip() for option in listed] or None}
