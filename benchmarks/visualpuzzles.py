"""VisualPuzzles: puzzles that need little knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_STEPS = (
    "Solve the multiple-choice question and then answer with the option letter from the given choices. "
    "The last line of your response should be of the following format:"
)
_FORMAT = (
    "'Answer: $LETTER' (without quotes) where LETTER is one of options. Think step by step before "
    "answering."
)


@dataclass(frozen=True)
class Visualpuzzles(Benchmark):
    """VisualPuzzles' 1,168 puzzles; the options of some are in the image.

    The prompts ask for steps (lmms-eval's VisualPuzzles_cot). VLMEvalKit cuts an option at an apostrophe
    in its prompt, which is not repeated here.

    Source: Song et al. 2025, arXiv 2504.10342; lmms-eval tasks/VisualPuzzles; VLMEvalKit
    dataset/image_mcq.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/neulab/VisualPuzzles"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "neulab/VisualPuzzles"
    checked: ClassVar[str] = "count, columns and licence: hub card; 2026-11"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 1168
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "image",
        "question": "question",
        "options": "options",
        "choice": "answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("category", "difficulty")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask=f"Question: {{question}}\nOptions:{{offered}}\n{_STEPS} {_FORMAT}",
            max_tokens=4096,
            scorer="puzzle_lmms",
            unread="expected",
            task="VisualPuzzles_cot",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask=f"{{question}}\nOptions:{{offered}}\n{_STEPS}{_FORMAT}",
            max_tokens=2048,
            scorer="puzzle_vlmeval",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the options as the prompts list them."""
        if row["options"] is None:
            offered = " Choose from (A) (B) (C) (D) in the image."
        else:
            listed = zip("ABCD", row["options"], strict=True)
            offered = "".join(f"\n({letter}) {text}" for letter, text in listed)
        return {**row, "offered": offered, "question": str(row["question"]).strip()}
