"""AI2D: multiple choice about diagrams of school science."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Ai2d(Benchmark):
    """AI2D's test split with the letters of the options in the figure masked.

    Source: Kembhavi et al. 2016, arXiv 1603.07396; lmms-eval tasks/ai2d, VLMEvalKit AI2D_TEST.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/ai2d"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/ai2d"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    count: ClassVar[int] = 3088
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "options": "options", "choice": "choice",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\n{options}\nAnswer with the option's letter from the given "
            "choices directly.",
            max_tokens=16,
            scorer="letter_start",
            task="ai2d",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="Question: {question}\nOptions:\n{options}\nPlease select the correct "
            "answer from the options above. \n",
            max_tokens=2048,
            scorer="letter_vlmeval",
            task="ImageMCQDataset AI2D_TEST",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the right option's letter into a column; the layout states its index as a text."""
        return {**row, "choice": "ABCDEFGH"[int(row["answer"])]}
