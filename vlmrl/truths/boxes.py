"""Boxes in an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry
from vlmrl.schema import Box, Frame, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Claim, Mark, Readers, TruthKind


@dataclass(frozen=True)
class Boxes(TruthKind):
    """Boxes in an image: `[{"box": [x1, y1, x2, y2], "label"?}, ...]` or bare lists of numbers."""

    rank: ClassVar[int] = 50
    form: ClassVar[str] = '[{"bbox_2d": [x1, y1, x2, y2], "label": name}]'
    types: ClassVar[tuple[type, ...]] = (Box,)
    placed: ClassVar[bool] = True
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"detection": {"check_labels": False}}

    def parse_item(self, value: object, frame: Frame) -> Box:
        numbers = base.check_numbers(value, "box", 4)
        box = geometry.box(numbers, frame, base.check_label(value))
        if box is None:
            raise ValueError(f"expected a box with area inside the media, got {numbers}")
        return box

    def to_json(self, item: Box) -> dict[str, Any]:
        score = {} if item.score is None else {"score": item.score}
        return {"box": list(item.xyxy), **base.label_of(item), **score}

    def convert(self, item: Box, frame: Frame) -> Box:
        x1, y1, x2, y2 = geometry.from_unit(item, frame)
        return replace(item, x1=x1, y1=y1, x2=x2, y2=y2)

    def instruct(self, truth: Truth, space: Space) -> str:
        return (
            'Write a box as JSON {"bbox_2d": [x1, y1, x2, y2]}, several as a list of '
            f'{{"bbox_2d": [x1, y1, x2, y2], "label": name}}, nothing as [], {PLACES[space]}.'
        )

    def write(self, truth: Truth, frame: Frame) -> str:
        """Write `{"bbox_2d": ...}`; labels tell several apart, a confidence is written if set."""
        boxes = truth.boxes or ()
        return base.list_items(
            [
                {"bbox_2d": write_box(box, frame)}
                | base.label_of(box, len(boxes) > 1)
                | ({} if box.score is None else {"confidence": box.score})
                for box in boxes
            ]
        )

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        """Draw a box, on the frame of its time where it has one."""
        match item:
            case {"box": [x1, y1, x2, y2]}:
                yield Mark("box", (x1, y1, x2, y2), item.get("label"), item.get("time"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        dog, cat, bird = EXAMPLES
        yield "Where is the dog?", Truth(boxes=(replace(dog, label=None),))
        yield "Find every dog and cat.", Truth(boxes=(dog, cat, bird))

    def mistake(self, truth: Truth) -> Truth:
        return replace(truth, boxes=tuple(map(move_aside, truth.boxes or ())))

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        yield from super().claim(truth, frame)
        if truth.boxes:
            sure = replace(truth, boxes=tuple(replace(b, score=0.9) for b in truth.boxes))
            aside = self.mistake(truth).boxes or ()
            unsure = replace(truth, boxes=tuple(replace(b, score=0.6) for b in aside))
            yield Claim("confident boxes", self.write(sure, frame), self.write(unsure, frame))

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        return {"bbox_2d": [x1, y1, x2, y2]}


EXAMPLES = (
    Box(0.225, 0.3125, 0.375, 0.525, "dog"),
    Box(0.1, 0.625, 0.2375, 0.8, "cat"),
    Box(0.75, 0.075, 0.8625, 0.225, "dog"),
)
"""Three boxes at whole pixels of 640 x 480."""


def write_box(box: Box, frame: Frame) -> list[float]:
    """Return the four numbers that a model should write for a box."""
    return base.round_place(geometry.from_unit(box, frame), frame.space)


def move_aside(box: Box) -> Box:
    """Move a box by half its width, away from the nearer edge: an IoU of 1/3."""
    half = (box.x2 - box.x1) / 2
    shift = half if box.x2 + half <= 1 else -half
    return replace(box, x1=max(0.0, box.x1 + shift), x2=min(1.0, box.x2 + shift))
