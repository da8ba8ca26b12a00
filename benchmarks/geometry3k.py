"""Geometry3K: school geometry with a diagram, four options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Geometry3k(Benchmark):
    """Geometry3K's 601 test problems with four options.

    Source: Lu et al. 2021, Inter-GPS, arXiv 2105.04165; lmms-eval tasks/geometry3k.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/Yang130/geometry3k_4choices_mixed"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "Yang130/geometry3k_4choices_mixed"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 601
    columns: ClassVar[Mapping[str, str]] = {
        "image": "images",
        "question": "problem",
        "options": "choices",
        "choice": "ground_truth",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=1024,
            scorer="letter_geometry",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})
