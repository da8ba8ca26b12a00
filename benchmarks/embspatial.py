"""EmbSpatial-Bench: where things are, seen by a robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Embspatial(Benchmark):
    """EmbSpatial-Bench's 3,640 questions.

    Source: Du et al. 2024, arXiv 2406.05756; lmms-eval tasks/embspatial.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/FlagEval/EmbSpatial-Bench"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "FlagEval/EmbSpatial-Bench"
    checked: ClassVar[str] = "count: EvalScope 1.14.1's statistics, 2026-11; licence: unchecked"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 3640
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "question",
        "options": "answer_options",
        "choice": "letter",
    }
    groups: ClassVar[tuple[str, ...]] = ("relation", "data_source")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Note: You only need to respond with A, B, C, D without providing any "
            "additional information.\n{question}\n{lines}",
            max_tokens=1024,
            scorer="letter_cv_bench",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the right letter into a column, and the options as they are shown."""
        options = row["answer_options"]
        lines = "\n".join(
            f"{letter}) {option}" for letter, option in zip("ABCD", options, strict=False)
        )
        return {**row, "letter": "ABCD"[int(row["answer"])], "lines": lines}
