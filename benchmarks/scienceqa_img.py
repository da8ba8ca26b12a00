"""ScienceQA: school questions with an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class ScienceqaImg(Benchmark):
    """ScienceQA's test questions that have an image.

    Source: Lu et al. 2022, arXiv 2209.09513; lmms-eval tasks/scienceqa.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/ScienceQA"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/ScienceQA (config ScienceQA-IMG)"
    checked: ClassVar[str] = "columns: lmms-eval, 2026-11; count and licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 2017
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "question",
        "options": "choices",
        "choice": "letter",
    }
    files: ClassVar[tuple[str, ...]] = ("ScienceQA-IMG",)
    groups: ClassVar[tuple[str, ...]] = ("subject", "topic")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{context}{question}\n{options}\nAnswer with the option's letter from "
            "the given choices directly.",
            max_tokens=16,
            scorer="letter_science",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{hinted}Question: {question}\nOptions:\n{options}\nPlease select the correct "
            "answer from the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            task="ImageMCQDataset ScienceQA_TEST",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the right letter into a column, and the hint with the words before it."""
        hint = row["hint"]
        return {
            **row,
            "letter": "ABCDEFGH"[int(row["answer"])],
            "context": f"Context: {hint}\n" if hint else "",
            "hinted": f"Hint: {hint}\n" if hint else "",
        }
