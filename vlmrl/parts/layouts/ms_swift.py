"""ms-swift's standard format with places: messages, images, and objects with their boxes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.row_forms import has_turns, media_columns, read_turns

SPACES = {"real": "pixel", "norm1": "norm1"}
"""`bbox_type` -> the space of the boxes."""
_BOX = "<bbox>"
_REF = "<ref-object>"


@dataclass(frozen=True)
class MsSwift(Layout):
    """Chats with `objects`, whose boxes are the answer.

    A row: {"messages": [{"role": "user", "content": "<image>Find the <ref-object>."}, {"role":
    "assistant", "content": "<bbox>"}], "images": ["a.jpg"], "objects": {"ref": ["dog"], "bbox": [[4,
    6, 30, 40]], "bbox_type": "real"}}. Boxes of two numbers are points. `<ref-object>` stands for the
    next `ref`, first of the messages of a user. `image_id` says which of several images all boxes are
    in, from 0. Rows without `objects` are `messages`, those with `tool_call` and
    `tool_response` too.

    Source: ms-swift, docs/source_en/Customization/Custom-dataset.md.
    """

    title: ClassVar[str] = "ms-swift"
    origin: ClassVar[str] = "ms-swift, Zhao et al. 2024, arXiv 2408.05517"
    narrows: ClassVar[tuple[str, ...]] = ("messages",)
    fields: ClassVar[Mapping[str, str]] = {
        "question": "messages",
        "system": "messages",
        "history": "messages",
        "turns": "messages",
        "image": "images",
        "boxes": "objects.bbox",
        "points": "objects.bbox",
        "box_labels": "objects.ref",
        "box_space": "objects.bbox_type",
        "image_index": "objects.image_id",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds ms-swift's rows."""
        fits = has_turns(place, "messages", "role") and place.has_keys("objects")
        return "rows have `messages` and `objects`" if fits else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        ours, reply = read_turns(row.get("messages"), media_columns(row), "messages")
        objects = row.get("objects")
        if isinstance(objects, str):
            try:
                objects = json.loads(objects)
            except ValueError as error:
                raise UserError(f"key 'objects': not valid JSON: {error}") from error
        if not isinstance(objects, Mapping) or not isinstance(objects.get("bbox"), list):
            raise UserError(f"key 'objects': expected an object with bbox, got {objects!r:.60}")
        names = [str(name) for name in objects.get("ref") or []]
        used, left = ours["question"].count(_REF), iter(names)
        if used > len(names):
            raise UserError(f"key 'objects.ref': expected {used} names or more, got {len(names)}")
        question = re.sub(_REF, lambda _: next(left), ours["question"])
        stated = {"id": row.get("id"), **ours, "question": question}
        return {**stated, **_places(objects, names, used, reply)}


def _places(
    objects: Mapping[str, Any], names: list[str], used: int, reply: str | None
) -> dict[str, Any]:
    """Return the boxes or points with their space, and labels where each has a name of its own."""
    kind = objects.get("bbox_type") or "real"
    if kind not in SPACES:
        raise UserError(f"key 'objects.bbox_type': expected real or norm1, got {kind!r:.60}")
    boxes = objects["bbox"]
    images = objects.get("image_id") or [0]
    if not isinstance(images, list) or len({*map(str, images)}) != 1:
        raise UserError(f"key 'objects.image_id': expected places in one image, got {images!r:.60}")
    if reply is not None and _BOX in reply and reply.count(_BOX) != len(boxes):
        raise UserError(
            f"key 'objects.bbox': expected {reply.count(_BOX)} boxes as the reply has, got {len(boxes)}"
        )
    own = names[used:] if len(names) - used == len(boxes) else names
    labels = own if len(own) == len(boxes) else names * len(boxes) if len(names) == 1 else []
    if boxes and all(isinstance(box, list) and len(box) == 2 for box in boxes):
        return {"points": boxes, "box_space": SPACES[kind], "image_index": images[0]}
    stated = {"boxes": boxes, "box_space": SPACES[kind], "image_index": images[0]}
    return {**stated, "box_labels": labels} if labels else stated
