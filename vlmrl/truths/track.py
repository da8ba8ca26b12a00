"""The track of one object through a video."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl import schema
from vlmrl.schema import Box, Frame, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Mark, Readers, TruthKind
from vlmrl.truths.boxes import Boxes, move_aside, write_box


@dataclass(frozen=True)
class Track(TruthKind):
    """Boxes of one object over time: `[{"time": seconds, "box": [x1, y1, x2, y2]}, ...]`.

    `{"track": [...], "label"}` states what the object is too.
    """

    rank: ClassVar[int] = 20
    form: ClassVar[str] = '[{"time": seconds, "bbox_2d": [x1, y1, x2, y2]}]'
    types: ClassVar[tuple[type, ...]] = (schema.BoxTrack,)
    placed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"track": {}}

    def parse(self, value: object, frame: Frame) -> schema.BoxTrack:
        label = base.check_label(value)
        items = base.check_list(
            value["track"] if isinstance(value, Mapping) and "track" in value else value
        )
        if not items or not all(isinstance(item, Mapping) and "time" in item for item in items):
            raise ValueError(f'expected a list of {{"time", "box"}}, got {value!r:.80}')
        times = tuple(base.check_number(item["time"]) for item in items)
        if list(times) != sorted(set(times)):
            raise ValueError(f"expected times that rise, got {list(times)!r:.80}")
        return schema.BoxTrack(
            times, tuple(Boxes().parse_item(item, frame) for item in items), label
        )

    def to_json(self, item: schema.BoxTrack) -> dict[str, Any]:
        boxes = zip(item.times, item.boxes, strict=True)
        track = [{"time": time, **Boxes().to_json(box)} for time, box in boxes]
        return {"track": track, **base.label_of(item)}

    def convert(self, item: schema.BoxTrack, frame: Frame) -> schema.BoxTrack:
        return replace(item, boxes=tuple(Boxes().convert(box, frame) for box in item.boxes))

    def instruct(self, truth: Truth, space: Space) -> str:
        return (
            'Write the track as a JSON list of {"time": seconds, "bbox_2d": [x1, y1, x2, y2]}, '
            f"{PLACES[space]}."
        )

    def write(self, truth: Truth, frame: Frame) -> str | None:
        if truth.track is None:
            return None
        pairs = zip(truth.track.times, truth.track.boxes, strict=True)
        return json.dumps([{"time": round(t, 2), "bbox_2d": write_box(b, frame)} for t, b in pairs])

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        match item:
            case {"track": [*boxes]}:
                for box in boxes:
                    yield from Boxes().draw(box) if isinstance(box, Mapping) else ()

    def examples(self) -> Iterator[tuple[str, Truth]]:
        boxes = tuple(Box(0.1 + 0.075 * i, 0.4, 0.225 + 0.075 * i, 0.6) for i in range(5))
        yield "Follow the ball.", Truth(track=schema.BoxTrack((0.0, 0.5, 1.0, 1.5, 2.0), boxes))

    def mistake(self, truth: Truth) -> Truth | None:
        if truth.track is None:
            return None
        aside = tuple(map(move_aside, truth.track.boxes))
        return replace(truth, track=replace(truth.track, boxes=aside))

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        """Return the region as a box without a time."""
        return {"bbox_2d": [x1, y1, x2, y2]}
