"""MMMU-Pro: questions of 30 college subjects with ten options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import texts_of


@dataclass(frozen=True)
class MmmuPro(Benchmark):
    """MMMU-Pro's standard questions with ten options; images come first.

    Source: Yue et al. 2024, arXiv 2409.02813; lmms-eval tasks/mmmu_pro.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MMMU/MMMU_Pro"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "MMMU/MMMU_Pro (config standard (10 options))"
    checked: ClassVar[str] = (
        "count: EvalScope 1.14.1's statistics; licence: hub card of MMMU/MMMU_Pro; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1730
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    files: ClassVar[tuple[str, ...]] = ("standard (10 options)",)
    groups: ClassVar[tuple[str, ...]] = ("subject",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\n\nAnswer with the option letter from the given "
            "choices directly.",
            max_tokens=256,
            scorer="mmmu",
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect the images that are named, and read the options; the layout has them as a text."""
        names = sorted(set(re.findall(r"<image (\d+)>", f"{row['question']} {row['options']}")))
        images = [row[f"image_{number}"] for number in names]
        return {**row, "images": images, "listed": texts_of(row, "options")}
