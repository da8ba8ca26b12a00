"""GUI-R1's rows: a screenshot, an instruction with what was done before, and the next action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError

ACTIONS = (
    "complete, press_home, click, press_back, type, wait, scroll, long_press, open_app, select"
)
WRITTEN = ("type", "select", "scroll")
"""Actions whose text is compared, as published."""


@dataclass(frozen=True)
class GuiR1(Layout):
    """Rows with `instruction`, `history`, `gt_action`, `gt_bbox` and `gt_input_text`.

    A row: {"image": "a.png", "instruction": "Open the menu", "history": "None", "task_type": "high",
    "gt_action": "click", "gt_bbox": [0.1, 0.2, 0.3, 0.3], "gt_input_text": "no input text"}. Numbers
    are shares of the image; two of them are a point. A click has its place, `type`, `select` and
    `scroll` their text; other actions are right by their name.

    Source: GUI-R1, verl/utils/dataset.py and verl/utils/reward_score/r1gui.py.
    """

    title: ClassVar[str] = "GUI-R1"
    origin: ClassVar[str] = "GUI-R1, Luo et al. 2025, arXiv 2504.10458"
    verifiers: ClassVar[tuple[str, ...]] = ("gui_action",)
    fields: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "question": "instruction and history",
        "image": "image",
        "fields": "gt_action",
        "boxes": "gt_bbox of four numbers, for a click",
        "points": "gt_bbox of two numbers, for a click",
        "answer": "gt_input_text, for type, select and scroll",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds GUI-R1's rows."""
        fits = place.has_keys("instruction", "gt_action", "gt_bbox", "gt_input_text")
        return "rows have `instruction`, `gt_action` and `gt_bbox`" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        instruction, action = (_text(row, key) for key in ("instruction", "gt_action"))
        action = action.lower()
        before = row.get("history") or "None"
        known = "click" if row.get("task_type") == "low" else ACTIONS
        question = (
            f"In this UI screenshot, continue the command '{instruction}' after the actions "
            f"'{before}'. Give the next action (one of {known}), where a click goes, and as its "
            "value the text or the direction that it needs."
        )
        typed = {"id": row.get("id"), "image": row.get("image"), "question": question}
        typed |= {"fields": {"action": action}, "box_space": "norm1"}
        if action == "click":
            return {**typed, **_place(row.get("gt_bbox"))}
        return {**typed, "answer": _text(row, "gt_input_text")} if action in WRITTEN else typed


def _text(row: Mapping[str, object], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"key {key!r}: expected a text, got {value!r:.60}")
    return value.strip()


def _place(value: object) -> dict[str, Any]:
    """Return the box or the point of a click."""
    if not isinstance(value, list) or len(value) not in (2, 4):
        raise UserError(f"key 'gt_bbox': expected two or four numbers, got {value!r:.60}")
    return {"points": [value]} if len(value) == 2 else {"boxes": [value]}
