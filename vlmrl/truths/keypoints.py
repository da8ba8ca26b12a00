"""Keypoints of objects with their visibility, as COCO states them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry, parsing
from vlmrl.answers.parsing import is_number
from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Mark, Readers, TruthKind

COCO_NAMES = (
    "nose", "left eye", "right eye", "left ear", "right ear", "left shoulder", "right shoulder",
    "left elbow", "right elbow", "left wrist", "right wrist", "left hip", "right hip", "left knee",
    "right knee", "left ankle", "right ankle",
)  # fmt: skip
MAX_INSTANCES = 200
"""Most instances that one answer may list."""
MAX_KEYPOINTS = 500
"""Most keypoints of one instance of an answer."""

Spot = tuple[float, float, int]
"""x, y (unit square) and visibility: 0 not labelled, 1 labelled but hidden, 2 visible."""


@dataclass(frozen=True, slots=True)
class Instance:
    """The keypoints of one object; `area` is the object's share of the image, for its scale.

    Example: Instance(((0.5, 0.2, 2), (0.0, 0.0, 0)), area=0.1)
    """

    spots: tuple[Spot, ...]
    area: float | None = None
    label: str | None = None


@dataclass(frozen=True)
class Keypoints(TruthKind):
    """Keypoints: `[{"keypoints": [[x, y, v], ...], "area"?, "label"?}, ...]`, flat lists too.

    `area` is in square units of the space of the coordinates; without it the box around the
    labelled keypoints counts.
    """

    rank: ClassVar[int] = 25
    form: ClassVar[str] = '[{"keypoints": [[x, y, v], ...]}]'
    types: ClassVar[tuple[type, ...]] = (Instance,)
    placed: ClassVar[bool] = True
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"oks": {}}

    def parse_item(self, value: object, frame: Frame) -> Instance:
        if not isinstance(value, Mapping) or "keypoints" not in value:
            raise ValueError(f'expected {{"keypoints": [[x, y, v], ...]}}, got {value!r:.80}')
        stated = base.check_list(value["keypoints"])
        if stated and not any(isinstance(n, list | tuple) for n in stated):
            stated = [stated[i : i + 3] for i in range(0, len(stated), 3)]
        width, height = geometry.extent(frame)
        spots: list[Spot] = []
        for spot in stated:
            numbers = [base.check_number(n) for n in base.check_list(spot)]
            if len(numbers) != 3 or numbers[2] not in (0, 1, 2):
                raise ValueError(f"expected [x, y, v] with v 0, 1 or 2, got {spot!r:.80}")
            spots.append((numbers[0] / width, numbers[1] / height, int(numbers[2])))
        area = value.get("area")
        share = None if area is None else base.check_number(area) / (width * height)
        instance = Instance(tuple(spots), share, base.check_label(value))
        if not any(v for _, _, v in spots) or not scale_of(instance) > 0:
            raise ValueError(f"expected a labelled keypoint and an area, got {value!r:.80}")
        return instance

    def to_json(self, item: Instance) -> dict[str, Any]:
        area = {} if item.area is None else {"area": item.area}
        return {"keypoints": [list(spot) for spot in item.spots], **area, **base.label_of(item)}

    def convert(self, item: Instance, frame: Frame) -> Instance:
        width, height = geometry.extent(frame)
        spots = tuple((x * width, y * height, v) for x, y, v in item.spots)
        return replace(item, spots=spots, area=item.area and item.area * width * height)

    def instruct(self, truth: Truth, space: Space) -> str:
        instances = truth.value(self.name) or ()
        coco = any(len(instance.spots) == len(COCO_NAMES) for instance in instances)
        order = f" in the order {', '.join(COCO_NAMES)}" if coco else ""
        return (
            f'Write the keypoints of an object as JSON {{"keypoints": [[x, y, v], ...]}}{order}, v '
            "2 visible, 1 hidden, 0 (with x and y 0) absent, several objects as a list, nothing as "
            f"[], {PLACES[space]}."
        )

    def write(self, truth: Truth, frame: Frame) -> str:
        instances = truth.value(self.name) or ()
        return base.list_items(
            [
                {"keypoints": [_write_spot(spot, frame) for spot in instance.spots]}
                | base.label_of(instance, len(instances) > 1)
                for instance in instances
            ]
        )

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        match item:
            case {"keypoints": [*spots]}:
                for spot in spots:
                    if isinstance(spot, list) and len(spot) == 3 and spot[2]:
                        yield Mark("point", (spot[0], spot[1]), item.get("label"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        visible = {4: 0, 9: 1}
        spots = []
        for i in range(len(COCO_NAMES)):
            v = visible.get(i, 2)
            spots.append((0.3 + 0.025 * (i % 5), 0.3 + 0.025 * i, v) if v else (0.0, 0.0, 0))
        yield "Where are the keypoints?", Truth(more={self.name: (Instance(tuple(spots), 0.04),)})

    def mistake(self, truth: Truth) -> Truth:
        """Move every keypoint by half the object's size."""
        moved = tuple(map(_move, truth.value(self.name) or ()))
        return replace(truth, more={**truth.more, self.name: moved})

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        steps = [i / (len(COCO_NAMES) - 1) for i in range(len(COCO_NAMES))]
        return {"keypoints": [[x1 + s * (x2 - x1), y1 + s * (y2 - y1), 2] for s in steps]}

    def share(self, truth: Truth) -> float:
        return max((scale_of(item) for item in truth.value(self.name) or ()), default=0.0)


def scale_of(instance: Instance) -> float:
    """Return an instance's area as a share of the image: stated, else of the box around it."""
    if instance.area is not None:
        return instance.area
    xs, ys = zip(*((x, y) for x, y, v in instance.spots if v), strict=True)
    return (max(xs) - min(xs)) * (max(ys) - min(ys))


def read(answer: str, frame: Frame) -> tuple[list[Instance], str]:
    """Return the instances an answer lists, unit square, in its order, and a note.

    Spellings: `{"keypoints": [[x, y, v], ...]}`, pairs without v, flat triples, `null` for an
    absent keypoint; lists of them. Keypoints outside the media stay where they are.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    if len(answer) > parsing.MAX_CHARS:
        return [], f"answer longer than {parsing.MAX_CHARS} characters"
    width, height = geometry.extent(frame)
    instances: list[Instance] = []
    for item in _find_objects(parsing.values(answer)):
        spots = _read_spots(item["keypoints"])
        if spots is None:
            continue
        label = item.get("label")
        scaled = tuple((x / width, y / height, v) for x, y, v in spots)
        instances.append(Instance(scaled, label=label if isinstance(label, str) else None))
        if len(instances) > MAX_INSTANCES:
            return [], f"more than {MAX_INSTANCES} instances"
    return instances, "" if instances else "no keypoints found in the answer"


def _find_objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "keypoints" in value:
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _find_objects(part)


def _read_spots(value: object) -> list[Spot] | None:
    """Return the keypoints as stated; None if it is no list of them."""
    if not isinstance(value, list) or not 0 < len(value) <= 3 * MAX_KEYPOINTS:
        return None
    if all(map(is_number, value)) and len(value) % 3 == 0:
        value = [value[i : i + 3] for i in range(0, len(value), 3)]
    spots: list[Spot] = []
    for spot in value:
        if spot is None:
            spots.append((0.0, 0.0, 0))
        elif isinstance(spot, list) and len(spot) in (2, 3) and all(map(is_number, spot)):
            v = spot[2] if len(spot) == 3 else 2
            spots.append((float(spot[0]), float(spot[1]), int(v > 0) + int(v > 1)))
        else:
            return None
    return spots


def _write_spot(spot: Spot, frame: Frame) -> list[float]:
    x, y, v = spot
    if not v:
        return [0, 0, 0]
    return [*base.write_corners([(x, y)], frame)[0], v]


def _move(instance: Instance) -> Instance:
    away = math.sqrt(scale_of(instance)) / 2
    return replace(instance, spots=tuple((x + away * (v > 0), y, v) for x, y, v in instance.spots))
