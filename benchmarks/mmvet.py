"""MM-Vet: open questions that need several skills at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mmvet(Benchmark):
    """MM-Vet's 218 questions. A judge gives every answer a share of the points.

    Without it only an answer that is one of the accepted texts to the letter is sure of all points,
    which is the lower bound here: it says little of a model that writes sentences.

    Source: Yu et al. 2023, arXiv 2308.02490; lmms-eval tasks/mmvet.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/MMVet"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/MMVet"
    checked: ClassVar[str] = "columns and prompt: lmms-eval, 2026-11; count and licence: unchecked"
    count: ClassVar[int] = 218
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id", "image": "image", "question": "question", "answer": "accepted",
    }  # fmt: skip
    groups: ClassVar[tuple[str, ...]] = ("capability",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="First please perform reasoning, and think step by step to provide best answer to "
            "the following question: \n\n{question}",
            max_tokens=1024,
            scorer="equal_text",
            unit="percent",
            judge="gpt-4o-2024-11-20",
            points=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the accepted texts, which <OR> parts; what <AND> joins must all be said."""
        parts = str(row["answer"]).split("<OR>")
        accepted = [", ".join(piece.strip() for piece in part.split("<AND>")) for part in parts]
        return {**row, "accepted": accepted}
