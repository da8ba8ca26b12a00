"""The Alpaca format, as LLaMA-Factory and ms-swift extend it: instruction, input, output, history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.row_forms import media_columns, read_reply, read_turns


@dataclass(frozen=True)
class Alpaca(Layout):
    """Rows with an `instruction`, perhaps an `input`, and the `output` that is the answer.

    A row: {"instruction": "<image>How many dogs?", "input": "", "output": "2", "images": ["a.jpg"],
    "system": "Be brief.", "history": [["Hello", "Hello"]]}. The input follows the instruction on a
    line of its own.

    Source: LLaMA-Factory, data/README.md.
    """

    title: ClassVar[str] = "Alpaca"
    origin: ClassVar[str] = "Stanford Alpaca, Taori et al. 2023; LLaMA-Factory, arXiv 2403.13372"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "instruction and input",
        "system": "system",
        "history": "history",
        "image": "images",
        "answer": "output",
        "boxes": "output",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds Alpaca's rows."""
        fits = place.has_keys("instruction", "output")
        return "rows have `instruction` and `output`" if fits else None

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        asked = [row[key] for key in ("instruction", "input") if row.get(key)]
        if not asked or not all(isinstance(text, str) for text in asked):
            raise UserError(f"key 'instruction': expected a text, got {asked!r:.60}")
        turns = [*_before(row.get("history")), {"role": "user", "content": "\n".join(asked)}]
        ours, _ = read_turns(turns, media_columns(row), "instruction")
        stated = {"id": row.get("id"), **ours, "system": row.get("system") or None}
        return {**stated, **read_reply(row.get("output"), ours["question"], "output")}


def _before(history: Any) -> list[dict[str, Any]]:
    """Return the turns of a history of pairs: what was asked, and what was answered."""
    turns = []
    for pair in history or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise UserError(f"key 'history': expected pairs of texts, got {pair!r:.60}")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return turns
