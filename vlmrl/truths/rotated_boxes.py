"""Rotated boxes in an image, such as those of aerial photographs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry, parsing
from vlmrl.answers.parsing import is_number
from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Mark, Readers, TruthKind

MIN_AREA = geometry.MIN_SIDE**2

Corner = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RotatedBox:
    """A convex quadrilateral: four corners (x, y) of the unit square, counter-clockwise by angle.

    Corners, not an angle, because scaling the two axes unlike turns a rectangle into a
    parallelogram. The IoU of two of them is the same in every space.

    Example: RotatedBox(((0.1, 0.1), (0.4, 0.1), (0.4, 0.3), (0.1, 0.3)))
    """

    corners: tuple[Corner, Corner, Corner, Corner]
    label: str | None = None


@dataclass(frozen=True)
class RotatedBoxes(TruthKind):
    """Rotated boxes: `{"corners": [[x, y] x 4]}` or `{"rotated_box": [cx, cy, w, h, degrees]}`.

    Lists of them, each with an optional "label". The angle turns x towards y, in the coordinates as
    stated.
    """

    rank: ClassVar[int] = 30
    form: ClassVar[str] = '[{"corners": [[x1, y1], [x2, y2], [x3, y3], [x4, y4]], "label": name}]'
    types: ClassVar[tuple[type, ...]] = (RotatedBox,)
    placed: ClassVar[bool] = True
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"rotated_iou": {"check_labels": False}}

    def parse_item(self, value: object, frame: Frame) -> RotatedBox:
        if isinstance(value, Mapping) and "corners" in value:
            stated = base.check_list(value["corners"])
            corners = [base.check_numbers(corner, "corner", 2) for corner in stated]
            if len(corners) != 4:
                raise ValueError(f"expected 4 corners, got {len(corners)}")
            places = [(x, y) for x, y in corners]
        else:
            cx, cy, w, h, degrees = base.check_numbers(value, "rotated_box", 5)
            places = turn_box(cx, cy, w, h, degrees)
        box = _make(places, frame, base.check_label(value))
        if box is None:
            raise ValueError(f"expected a convex box with area, got {value!r:.80}")
        return box

    def to_json(self, item: RotatedBox) -> dict[str, Any]:
        return {"corners": [list(corner) for corner in item.corners], **base.label_of(item)}

    def convert(self, item: RotatedBox, frame: Frame) -> RotatedBox:
        a, b, c, d = base.scale(item.corners, frame)
        return replace(item, corners=(a, b, c, d))

    def instruct(self, truth: Truth, space: Space) -> str:
        return (
            'Write a rotated box as JSON {"corners": [[x1, y1], [x2, y2], [x3, y3], [x4, y4]]}, '
            'several as a list with a "label": name in each, nothing as [], '
            f"{PLACES[space]}."
        )

    def write(self, truth: Truth, frame: Frame) -> str:
        boxes: Sequence[RotatedBox] = truth.value(self.name) or ()
        return base.list_items(
            [
                {"corners": base.write_corners(box.corners, frame)}
                | base.label_of(box, len(boxes) > 1)
                for box in boxes
            ]
        )

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        match item:
            case {"corners": [[a, b], [c, d], [e, f], [g, h]]}:
                yield Mark("outline", (a, b, c, d, e, f, g, h), item.get("label"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        ship = RotatedBox(((0.25, 11 / 30), (0.3, 0.3), (0.4, 13 / 30), (0.35, 0.5)), "ship")
        boat = RotatedBox(((0.6, 0.1), (0.7, 0.1), (0.7, 0.2), (0.6, 0.2)), "boat")
        yield "Where is the ship?", Truth(more={self.name: (replace(ship, label=None),)})
        yield "Find every ship and boat.", Truth(more={self.name: (ship, boat)})

    def mistake(self, truth: Truth) -> Truth:
        moved = tuple(map(_move, truth.value(self.name) or ()))
        return replace(truth, more={**truth.more, self.name: moved})

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        return {"corners": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]}


def order_corners(corners: Sequence[Corner]) -> tuple[Corner, Corner, Corner, Corner] | None:
    """Return four corners in order of angle around their middle; None unless convex with area."""
    x, y = sum(c[0] for c in corners) / 4, sum(c[1] for c in corners) / 4
    a, b, c, d = sorted(corners, key=lambda corner: math.atan2(corner[1] - y, corner[0] - x))
    turns = (_turn(a, b, c), _turn(b, c, d), _turn(c, d, a), _turn(d, a, b))
    if not all(map(math.isfinite, turns)) or min(turns) <= MIN_AREA:
        return None
    return a, b, c, d


def turn_box(cx: float, cy: float, w: float, h: float, degrees: float) -> list[Corner]:
    """Return the corners of a box of width w and height h turned by an angle around its centre."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    sides = ((-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2))
    return [(cx + x * cos - y * sin, cy + x * sin + y * cos) for x, y in sides]


def read(answer: str, frame: Frame) -> tuple[list[RotatedBox], str]:
    """Return the rotated boxes an answer lists, unit square, in its order, and a note.

    Spellings: those of `RotatedBoxes`, `corners` also as eight numbers, `rotated_box` also `rbox`,
    and `{"bbox_2d": [x1, y1, x2, y2]}` for one that is not turned.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """

    def make(item: tuple[dict[str, Any], list[Corner]]) -> RotatedBox | None:
        label = item[0].get("label")
        return _make(item[1], frame, label if isinstance(label, str) else None)

    def items(text: str) -> Iterator[tuple[dict[str, Any], list[Corner]]]:
        return _find_corners(parsing.values(text))

    lost = "not convex or without area"
    return parsing.collect(answer, items, make, "rotated box", lost)


def _find_corners(value: object) -> Iterator[tuple[dict[str, Any], list[Corner]]]:
    """Yield every object in a value that states four corners or a turned box, with its corners."""
    if isinstance(value, dict):
        corners = _corners_of(value)
        if corners is not None:
            yield value, corners
    elif isinstance(value, list):
        for part in value:
            yield from _find_corners(part)


def _corners_of(item: dict[str, Any]) -> list[Corner] | None:
    turned: Any = item.get("rotated_box", item.get("rbox"))
    if _are_numbers(turned, 5):
        return turn_box(*map(float, turned))
    if _are_numbers(item.get("bbox_2d"), 4):
        x1, y1, x2, y2 = map(float, item["bbox_2d"])
        return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    corners: Any = item.get("corners")
    if _are_numbers(corners, 8):
        corners = [corners[i : i + 2] for i in range(0, 8, 2)]
    if isinstance(corners, list) and len(corners) == 4 and all(_are_numbers(c, 2) for c in corners):
        return [(float(x), float(y)) for x, y in corners]
    return None


def _are_numbers(value: object, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_number, value))


def _make(corners: Sequence[Corner], frame: Frame, label: str | None) -> RotatedBox | None:
    width, height = geometry.extent(frame)
    ordered = order_corners([(x / width, y / height) for x, y in corners])
    return RotatedBox(ordered, label) if ordered else None


def _turn(a: Corner, b: Corner, c: Corner) -> float:
    """Return twice the area of a triangle, positive where it turns counter-clockwise."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _move(box: RotatedBox) -> RotatedBox:
    xs = [x for x, _ in box.corners]
    half = (max(xs) - min(xs)) / 2
    half = half if max(xs) + half <= 1 else -half
    a, b, c, d = ((x + half, y) for x, y in box.corners)
    return replace(box, corners=(a, b, c, d))
