"""Points in an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry
from vlmrl.schema import Frame, Point, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Claim, Mark, Readers, TruthKind
from vlmrl.truths.boxes import EXAMPLES


@dataclass(frozen=True)
class Points(TruthKind):
    """Points in an image: `[{"point": [x, y], "label"?}, ...]` or bare pairs of numbers."""

    rank: ClassVar[int] = 60
    form: ClassVar[str] = '{"point_2d": [x, y]}'
    types: ClassVar[tuple[type, ...]] = (Point,)
    placed: ClassVar[bool] = True
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"point": {}}

    def parse_item(self, value: object, frame: Frame) -> Point:
        x, y = base.check_numbers(value, "point", 2)
        point = geometry.point(x, y, frame, base.check_label(value))
        if point is None:
            raise ValueError(f"expected a point inside the media, got {[x, y]}")
        return point

    def to_json(self, item: Point) -> dict[str, Any]:
        return {"point": [item.x, item.y], **base.label_of(item)}

    def convert(self, item: Point, frame: Frame) -> Point:
        x, y = geometry.point_from_unit(item, frame)
        return replace(item, x=x, y=y)

    def instruct(self, truth: Truth, space: Space) -> str:
        return (
            'Write a point as JSON {"point_2d": [x, y]}, several as a list, nothing as [], '
            f"{PLACES[space]}."
        )

    def can_state(self, truth: Truth) -> bool:
        return truth.points is not None or bool(places_to_point_at(truth))

    def write(self, truth: Truth, frame: Frame) -> str:
        """Write `{"point_2d": ...}`, of boxes and masks a point inside; labels tell several apart."""
        points = places_to_point_at(truth)
        return base.list_items(
            [
                {"point_2d": write_point(point, frame)} | base.label_of(point, len(points) > 1)
                for point in points
            ]
        )

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        match item:
            case {"point": [x, y]}:
                yield Mark("point", (x, y), item.get("label"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        box = replace(EXAMPLES[0], label=None)
        yield "Point at the dog.", Truth(points=(Point(0.3, 0.425),), boxes=(box,))

    def mistake(self, truth: Truth) -> Truth:
        away = (replace(p, x=(p.x + 0.5) % 1, y=(p.y + 0.5) % 1) for p in places_to_point_at(truth))
        return replace(truth, points=tuple(away))

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        """Yield the points, or the centres of the boxes where there are none."""
        return super().claim(replace(truth, points=places_to_point_at(truth)), frame)

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        """Return the region as a box, which stands for its centre."""
        return {"bbox_2d": [x1, y1, x2, y2]}


def places_to_point_at(truth: Truth) -> tuple[Point, ...]:
    """Return the points of a truth, else the centres of its boxes, else a point in each mask."""
    if truth.points or truth.boxes or not truth.masks:
        return truth.points or tuple(geometry.centre(box) for box in truth.boxes or ())
    from vlmrl.answers import masks  # few data have them

    return tuple(map(masks.inner_point, truth.masks))


def write_point(point: Point, frame: Frame) -> list[float]:
    """Return the two numbers that a model should write for a point."""
    return base.round_place(geometry.point_from_unit(point, frame), frame.space)
