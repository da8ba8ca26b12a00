"""VLM-R1's rows: its JSONL with conversations, and its JSON with a problem and a box as the solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layouts.base import Layout, Place
from vlmrl.data.layouts.conversations import has_turns, read_turns
from vlmrl.data.layouts.media_columns import media_columns
from vlmrl.data.layouts.replies import read_reply
from vlmrl.errors import UserError

METHOD = "accu_reward_method"
VERIFIERS = {
    "mcq": "choice",
    "yes_no": "yes_no",
    "math": "math",
    "map": "detection",
    "od_ap": "detection",
    "od_ap50": "detection",
    "odLength": "detection",
    "all_match": "exact",
}
"""`accu_reward_method` -> the verifier that scores like it."""


@dataclass(frozen=True)
class VlmR1(Layout):
    """Referring expressions and questions of VLM-R1, boxes in pixels of the original image.

    A row of the JSONL: {"id": 1, "image": "a.jpg", "conversations": [{"from": "human", "value":
    "<image>Where is the dog?"}, {"from": "gpt", "value": [4, 6, 30, 40]}], "accu_reward_method": "default"}.
    A row of the JSON: {"image": "a.jpg", "problem": "Where is the dog?", "solution": [4, 6, 30, 40]}.
    A list of {bbox_2d, label}, fenced or not, is read as boxes, and `None` as nothing. What
    `accu_reward_method` names is noted in `meta`.

    Source: VLM-R1, src/open-r1-multimodal/src/open_r1/grpo_jsonl.py.
    """

    title: ClassVar[str] = "VLM-R1"
    origin: ClassVar[str] = "VLM-R1, Shen et al. 2025, arXiv 2504.07615"
    narrows: ClassVar[tuple[str, ...]] = ("llava", "trl")
    fields: ClassVar[Mapping[str, str]] = {
        "question": "conversations or problem",
        "image": "image",
        "answer": "conversations or solution",
        "boxes": "conversations or solution",
        "width": "width",
        "height": "height",
        "meta": "accu_reward_method, normal_caption",
    }

    def recognise(self, place: Place) -> str | None:
        """Return why a place holds VLM-R1's rows."""
        if not place.has_keys("image"):
            return None
        if has_turns(place, "conversations", "from") and not place.has_keys("images"):
            lines = place.path.suffix == ".jsonl" or any(n.endswith(".jsonl") for n in place.names)
            return (
                "JSONL of `image` and `conversations`" if lines or place.has_keys(METHOD) else None
            )
        box = place.has_keys("problem", "solution") and place.head[0]["solution"]
        return "rows have `problem` and a box as `solution`" if isinstance(box, list) else None

    def read(self, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return a row under our keys."""
        if "conversations" in row:
            key, turns = "conversations", _written(row["conversations"])
        else:
            key = "solution"
            turns = [{"from": "human", "value": row.get("problem")}]
            turns += [{"from": "gpt", "value": _text(row.get("solution"))}]
        ours, reply = read_turns(turns, media_columns(row), key, "from", "value")
        meta = {k: row[k] for k in (METHOD, "normal_caption") if k in row}
        size = {k: row[k] for k in ("width", "height") if k in row}
        stated = {"id": row.get("id"), **ours, **size, "box_space": "pixel", "meta": meta}
        return {**stated, **read_reply(reply, ours["question"], key)}


def _written(turns: Any) -> Any:
    """Return turns whose replies are texts: VLM-R1's may be a number or a list as well."""
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        return turns
    return [{**turn, "value": _text(turn.get("value"))} for turn in turns]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float | list):
        raise UserError(f"expected a text, a number or a box as the answer, got {value!r:.60}")
    return str(value)
