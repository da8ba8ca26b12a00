"""PathVQA: questions about images of pathology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class PathVqa(Benchmark):
    """PathVQA's test split; half of the questions are to be answered with yes or no.

    VLMEvalKit asks a judge about every answer; without one only an answer that is the accepted text to
    the letter is sure to be right, which is the lower bound here. Strict compares normalised texts.

    Source: He et al. 2020, arXiv 2003.10286; VLMEvalKit PathVQA_TEST.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/flaviagiammarino/path-vqa"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "flaviagiammarino/path-vqa"
    checked: ClassVar[str] = "prompt: VLMEvalKit, 2026-11; count and licence: unchecked"
    count: ClassVar[int] = 6719
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image", "question": "question", "answer": "answer",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("kind",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\nPlease directly provide a short answer to the question. ",
            max_tokens=2048,
            scorer="equal_text",
            unit="percent",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Say whether a question is closed: answered with yes or no."""
        closed = str(row["answer"]).strip().lower() in ("yes", "no")
        return {**row, "kind": "closed" if closed else "open"}
