"""MMVP: pairs of images that CLIP takes for the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmvp(Benchmark):
    """MMVP's 300 questions in 150 pairs; a pair counts if both are right.

    Source: Tong et al. 2024, arXiv 2401.06209; lmms-eval tasks/mmvp.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-eval/MMVP"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-eval/MMVP"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 300
    columns: ClassVar[Mapping[str, str]] = {
        "id": "Index",
        "image": "image",
        "question": "Question",
        "options": "listed",
        "choice": "letter",
    }
    cluster: ClassVar[str] = "pair"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=16,
            scorer="letter_mmvp",
            also=("all_of_groups by pair",),
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, also=("all_of_groups by pair",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read the options (a) and (b) and the right letter, and add the pair of a row."""
        listed = re.findall(
            r"\([a-z]\)\s*([^(]+?)(?=\s*\([a-z]\)|$)", row["Options"], re.IGNORECASE
        )
        letter = row["Correct Answer"].strip("() ").upper()
        pair = (int(row["Index"]) - 1) // 2
        return {**row, "listed": listed, "letter": letter, "pair": pair}
