"""A typed truth from its JSON form, and typed answers back into the space of a row.

    {"boxes": [{"box": [x1, y1, x2, y2], "label": "dog"}], "number": 1}

Keys: `boxes`, `points` [{"point": [x, y], "label"?}], `spans` [{"span": [start, end], "label"?}],
`track` [{"time": t, "box": [...]}, ...], `text` (one or a list of accepted texts), `number`,
`choice`, `options`, `labels`, `masks` (polygons [[x, y], ...] or COCO RLE), `fields`, `none`. A
place or a stretch of time may stand bare, as its numbers. Coordinates are in the frame's space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Box, Frame, Point, Span, Track, Truth

T = TypeVar("T")
KEYS = tuple(f.name for f in fields(Truth))


def read(value: Any, frame: Frame) -> Truth:
    """The truth that a JSON object states, in the unit square and in seconds.

    Raises:
        UserError: an unknown key, a value of the wrong kind, a place outside the media, or nothing
            stated at all; the message names the key.
    """
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"truth is an object with some of {', '.join(KEYS)}; found {value!r:.80}")
    found: dict[str, Any] = {}
    for key, stated in value.items():
        if key not in KEYS:
            raise UserError(f"truth has no key {key!r}{nearest(str(key), list(KEYS))}")
        try:
            found[key] = _READERS[key](stated, frame)
        except ValueError as error:
            raise UserError(f"truth.{key}: {error}") from error
    return Truth(**found)


def in_space(value: Any, frame: Frame) -> Any:
    """A typed answer with every box and point in the frame's space instead of the unit square."""
    if isinstance(value, Box):
        x1, y1, x2, y2 = geometry.from_unit(value, frame)
        return replace(value, x1=x1, y1=y1, x2=x2, y2=y2)
    if isinstance(value, Point):
        x, y = geometry.point_from_unit(value, frame)
        return replace(value, x=x, y=y)
    if isinstance(value, Track):
        return replace(value, boxes=in_space(value.boxes, frame))
    if isinstance(value, tuple | list):
        return tuple(in_space(item, frame) for item in value)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list is wanted, found {value!r:.80}")
    return list(value)


def _each(read_one: Callable[[Any, Frame], T]) -> Callable[[Any, Frame], tuple[T, ...]]:
    return lambda value, frame: tuple(read_one(item, frame) for item in _list(value))


def _numbers(value: Any, key: str, count: int) -> tuple[list[float], str | None]:
    """The `count` finite numbers of `{key: [...], "label"?}` or of a bare list, and the label."""
    label = None
    if isinstance(value, Mapping):
        label = value.get("label")
        if label is not None:
            _text(label, Frame())
        value = value.get(key)
    if not isinstance(value, list | tuple) or len(value) != count:
        raise ValueError(f"a {key} is {count} numbers, found {value!r:.80}")
    return [_number(n, Frame()) for n in value], label


def _number(value: Any, _: Frame) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"a finite number is wanted, found {value!r:.80}")
    return float(value)


def _box(value: Any, frame: Frame) -> Box:
    numbers, label = _numbers(value, "box", 4)
    found = geometry.box(numbers, frame, label)
    if found is None:
        raise ValueError(f"box {numbers} has no area inside the media")
    return found


def _point(value: Any, frame: Frame) -> Point:
    (x, y), label = _numbers(value, "point", 2)
    found = geometry.point(x, y, frame, label)
    if found is None:
        raise ValueError(f"point {[x, y]} lies outside the media")
    return found


def _span(value: Any, frame: Frame) -> Span:
    (start, end), label = _numbers(value, "span", 2)
    found = geometry.span(start, end, frame, label)
    if found is None:
        raise ValueError(f"span {[start, end]} runs backwards or lies outside the media")
    return found


def _track(value: Any, frame: Frame) -> Track:
    items = _list(value)
    if not items or not all(isinstance(item, Mapping) and "time" in item for item in items):
        raise ValueError('a list of {"time": seconds, "box": [...]} is wanted')
    times = tuple(_number(item["time"], frame) for item in items)
    if list(times) != sorted(set(times)):
        raise ValueError(f"times must rise, found {list(times)!r:.80}")
    return Track(times, tuple(_box(item, frame) for item in items))


def _mask(value: Any, frame: Frame) -> Any:
    if isinstance(value, Mapping):
        if set(value) != {"size", "counts"}:
            raise ValueError('a mask is a polygon or an RLE {"size": [h, w], "counts": ...}')
        return dict(value)
    corners = [_numbers(corner, "corner", 2)[0] for corner in _list(value)]
    if len(corners) < 3:
        raise ValueError(f"a polygon has at least 3 corners, found {len(corners)}")
    width, height = geometry.extent(frame)
    return tuple((x / width, y / height) for x, y in corners)


def _text(value: Any, _: Frame) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"a text is wanted, found {value!r:.80}")
    return value


def _texts(value: Any, frame: Frame) -> tuple[str, ...]:
    return tuple(_text(item, frame) for item in ([value] if isinstance(value, str) else value))


def _fields(value: Any, _: Frame) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"an object is wanted, found {value!r:.80}")
    return dict(value)


def _flag(value: Any, _: Frame) -> bool:
    if value is not True:
        raise ValueError(f"the only value is true, found {value!r:.80}")
    return True


_READERS: dict[str, Callable[[Any, Frame], Any]] = {
    "boxes": _each(_box),
    "points": _each(_point),
    "spans": _each(_span),
    "track": _track,
    "text": _texts,
    "number": _number,
    "choice": _text,
    "options": _each(_text),
    "labels": _each(_text),
    "masks": _each(_mask),
    "fields": _fields,
    "none": _flag,
}
