"""Typed truths and answers from JSON, back to JSON, and into the space of a row.

    {"boxes": [{"box": [x1, y1, x2, y2], "label": "dog"}], "number": 1, "image": 0}

The keys of a truth are the kinds in this folder; each file says how its value is stated. `image` says
which of several images (or videos) its places are in, from 0.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping
from typing import Any

from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Frame, Truth
from vlmrl.truths.base import Mark, TruthKind, kinds

IMAGE = "image"


def read(value: object, frame: Frame) -> Truth:
    """Return the truth that a JSON object states, in the unit square and in seconds.

    Coordinates are in the frame's space.

    Raises:
        UserError: an unknown key, a value of the wrong kind, a place outside the media, or nothing
            stated at all; the message names the key.
    """
    known = kinds()
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"expected a truth with some of {', '.join(known)}, got {value!r:.80}")
    values: dict[str, Any] = {}
    image = read_image(value.get(IMAGE, 0), f"truth.{IMAGE}")
    for key, stated in value.items():
        if key == IMAGE:
            continue
        if key not in known:
            raise UserError(f"truth has no key {key!r}{nearest(str(key), list(known))}")
        try:
            values[key] = known[key].parse(stated, frame)
        except ValueError as error:
            raise UserError(f"truth.{key}: {error}") from error
    if not values:
        raise UserError(f"expected a truth with some of {', '.join(known)}, got {value!r:.80}")
    return Truth.of(values, image)


def read_image(stated: object, where: str) -> int:
    """Return which of several images a truth is about, from 0; else a UserError that `where` begins."""
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 0:
        raise UserError(f"{where}: expected the place of an image, from 0, got {stated!r:.60}")
    return stated


def convert(value: object, frame: Frame) -> Any:
    """Return a typed answer with every place in the frame's space instead of the unit square."""
    if kind := _kind_of(value):
        return kind.convert(value, frame)
    if isinstance(value, tuple | list):
        return tuple(convert(item, frame) for item in value)
    return value


def to_json(value: object) -> Any:
    """Return any value of the main path as plain JSON values.

    The value of a kind of truth becomes what its file says, such as {"box": [x1, y1, x2, y2],
    "label"?, "score"?}; a field of another dataclass that is None is left out. What JSON cannot say
    becomes its `str`, and a number that is not finite null.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, numbers.Real):  # numpy's numbers too
        return float(value) if math.isfinite(value) else None
    if kind := _kind_of(value):
        return to_json(kind.to_json(value))
    if isinstance(value, Truth):
        return to_json(value.stated() | ({IMAGE: value.image} if value.image else {}))
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if dataclasses.is_dataclass(value):
        values = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {key: to_json(v) for key, v in values.items() if v is not None}
    return str(value)


def marks(value: object) -> list[Mark]:
    """Return the marks of every place and span in JSON values that `to_json` made."""
    if isinstance(value, list):
        return [mark for part in value for mark in marks(part)]
    if not isinstance(value, dict):
        return []
    for kind in kinds().values():
        if drawn := list(kind.draw(value)):
            return drawn
    return marks(list(value.values()))


def _kind_of(value: object) -> TruthKind | None:
    """Return the kind of truth that a typed value belongs to."""
    return _by_type().get(type(value))


@functools.cache
def _by_type() -> dict[type, TruthKind]:
    return {type_: kind for kind in kinds().values() for type_ in kind.types}
