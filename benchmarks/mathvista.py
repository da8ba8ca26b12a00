"""MathVista: mathematics in figures, charts and scenes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Mathvista(Benchmark):
    """MathVista's testmini split, by the prompt of lmms-eval's task mathvista_testmini_format.

    A judge reads what is no number and no option's text; without it such an answer is wrong here.

    VLMEvalKit reads letters, and numbers only if they are right and not 0; its question is the
    published `query`.

    Source: Lu et al. 2023, arXiv 2310.02255; lmms-eval tasks/mathvista, VLMEvalKit
    dataset/utils/mathvista.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/AI4Math/MathVista"
    licence: ClassVar[str] = "CC BY-SA 4.0"
    hub: ClassVar[str] = "AI4Math/MathVista"
    checked: ClassVar[str] = "count and licence: hub card of AI4Math/MathVista; 2026-11"
    split: ClassVar[str] = "testmini"
    count: ClassVar[int] = 1000
    columns: ClassVar[Mapping[str, str]] = {
        "id": "pid",
        "image": "decoded_image",
        "question": "question",
        "options": "listed",
        "choice": "letter",
        "answer": "right",
    }
    groups: ClassVar[tuple[str, ...]] = ("question_type", "answer_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}{unit_text}\n{options}\n{hint}",
            max_tokens=16384,
            scorer="mathvista",
            ask_open="{question}{unit_text}\n{hint}",
            unit="percent",
            judge="gpt-4o-2024-11-20",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{query}",
            max_tokens=2048,
            scorer="mathvista_vlmeval",
            unit="percent",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the words by which lmms-eval asks for each type, and letter and text of the right option."""
        kind, precision = row["answer_type"], row["precision"]
        places = {1: "one decimal place", 2: "two decimal places"}.get(precision or 0, "")
        hints = {
            "text": "Answer with the option's letter from the given choices directly.",
            "integer": "Answer the question using a single integer number.",
            "float": f"Answer the question using a single floating-point number with {places}.",
            "list": "Answer the question using a Python list.",
        }
        unit = f" (Unit: {row['unit']})" if row["unit"] else ""
        listed, right = row["choices"] or None, row["answer"]
        letter = "ABCDEFGHIJ"[listed.index(right)] if listed else None
        accepted = [right, letter] if letter else [right]
        more = {"hint": hints[kind], "unit_text": unit, "letter": letter, "right": accepted}
        return {**row, **more, "listed": listed, "stated": right}
