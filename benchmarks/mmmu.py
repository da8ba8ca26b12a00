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

    VLMEvalKit's MMMU_DEV_VAL prints the dev split beside this one; it offers an open answer as option A
    beside "Other Answers", so that any answer that says A is right there.

    Source: Yue et al. 2023, arXiv 2311.16502; lmms-eval tasks/mmmu, VLMEvalKit dataset/image_mcq.py.
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
        Official(
            "vlmevalkit@e8e78f0",
            ask="Question: {question}\nOptions:\n{options}\nPlease select the correct answer from "
            "the options above. \n",
            max_tokens=2048,
            scorer="mmmu_vlmeval",
            ask_open="Question: {question}\n",
            interleaved=True,
            numbered=True,
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect the images that are named, and read the options; the layout has them as a text."""
        names = sorted(set(re.findall(r"<image (\d+)>", f"{row['question']} {row['options']}")))
        images = [row[f"image_{number}"] for number in names]
        listed = texts_of(row, "options") or None
        letter = row["answer"] if listed else None
        more = {"images": images, "listed": listed, "letter": letter, "stated": row["answer"]}
        return {**row, **more}
