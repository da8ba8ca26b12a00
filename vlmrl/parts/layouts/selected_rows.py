"""Rows that `vlmrl data select` took from a run: questions with their truth as the run knew it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.row_forms import LISTS
from vlmrl.errors import UserError


@dataclass(frozen=True)
class SelectedRows(Layout):
    """Questions with a typed truth, in the unit square and in seconds, and where they come from.

    A row: {"id": "shapes-17", "question": "Where is the dog?", "images": ["rows_media/3f.png"], "truth":
    {"boxes": [{"box": [0.1, 0.2, 0.5, 0.6], "label": "dog"}]}, "selected_from": {"run": "mine", "step": 10}}.
    """

    title: ClassVar[str] = "rows selected from a run"
    origin: ClassVar[str] = "`vlmrl data select`"
    fields: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "question": "question",
        "system": "system",
        "history": "history",
        **LISTS,
        "image_index": "truth.image",
        "answer": "truth.text",
        "boxes": "truth.boxes",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds selected rows."""
        fits = place.has_keys("selected_from", "question", "truth")
        return "rows have `selected_from`, a question and a truth" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        truth = row.get("truth")
        if not isinstance(truth, Mapping):
            raise UserError(f"key 'truth': expected an object, got {truth!r:.60}")
        kept = ("id", "question", "system", "history")
        ours: dict[str, Any] = {key: row.get(key) for key in kept}
        ours |= {kind: row[key] for kind, key in LISTS.items() if row.get(key)}
        named = {"image": "image_index", "text": "answer"}
        ours |= {named.get(str(kind), str(kind)): value for kind, value in truth.items()}
        if "boxes" in truth:
            stated = truth["boxes"]
            boxes: list[Any] = stated if isinstance(stated, list) else [None]
            if not all(isinstance(box, Mapping) and "box" in box for box in boxes):
                raise UserError(f"key 'truth.boxes': expected a list of boxes, got {stated!r:.60}")
            ours["boxes"] = [box["box"] for box in boxes]
            ours["box_labels"] = [box.get("label") for box in boxes]
        return {**ours, "box_space": "norm1"}
