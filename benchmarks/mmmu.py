"""MMMU: questions of 30 college subjects, most of them multiple choice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import texts_of


@dataclass(frozen=True)
class Mmmu(Benchmark):
    """MMMU's validation split; images stand where the question names them.

    Source: Yue et al. 2023, arXiv 2311.16502; lmms-eval tasks/mmmu.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/MMMU"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "lmms-lab-encoder/MMMU"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 900
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "question",
        "options": "listed",
        "choice": "letter",
        "answer": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("question_type",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\n\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=128,
            scorer="mmmu",
            ask_open="{question}\n\nAnswer the question using a single word or phrase.",
            interleaved=True,
            unread="expected",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect the images that are named, and read the options; the layout has them as a text."""
        names = sorted(set(re.findall(r"<image (\d+)>", f"{row['question']} {row['options']}")))
        images = [row[f"image_{number}"] for number in names]
        listed = texts_of(row, "options") or None
        letter = row["answer"] if listed else None
        return {**row, "images": images, "listed": listed, "letter": letter}
