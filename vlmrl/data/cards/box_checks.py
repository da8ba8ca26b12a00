"""A check on the places that data state before they are converted: is the space the declared one?

`noting_places` hands them on as they are stated, so that `vlmrl data check` can judge their space
over all rows, refused ones too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.schema import Frame

__all__ = ["SLACK_PX", "StatedPlace", "check_inside", "note_points", "noting_places"]

SLACK_PX = 1.0
"""How far outside of its image a true box may reach; in `norm1` a thousandth."""


@dataclass(frozen=True, slots=True)
class StatedPlace:
    """A box (x1, y1, x2, y2) or a point (x, y) as a row states it, and the frame that it is said to be in."""

    numbers: tuple[float, ...]
    frame: Frame


_noted: ContextVar[list[StatedPlace] | None] = ContextVar("noted_places", default=None)


@contextlib.contextmanager
def noting_places() -> Iterator[list[StatedPlace]]:
    """Collect the boxes and points that cards read meanwhile, before any check refuses them."""
    found: list[StatedPlace] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def check_inside(boxes: Sequence[Any], frame: Frame) -> None:
    """Refuse xyxy boxes in `frame.space` that run backwards or reach more than a pixel outside.

    A model's box may be clipped and turned; a true box like that is in another space or format than
    declared. Anything that is not a list of four numbers is left to `json_form.read`.

    Raises:
        UserError: names the box and the image.
    """
    width, height = geometry.extent(frame)
    slack = SLACK_PX if frame.space != "norm1" else 1e-3
    found = [box for box in boxes if _are_numbers(box, 4)]
    _note(found, frame)
    for box in found:
        x1, y1, x2, y2 = box
        if x1 >= x2 or y1 >= y2:
            raise UserError(f"expected a box with x1 < x2 and y1 < y2, got {list(box)}")
        if min(x1, y1) < -slack or x2 > width + slack or y2 > height + slack:
            raise UserError(
                f"box {list(box)} lies outside 0..{width:g} x 0..{height:g}: expected x1, y1, x2, y2 in "
                f"the space {frame.space!r}"
            )


def note_points(value: Any, frame: Frame) -> None:
    """Hand the points that a row states to `noting_places`; `json_form.read` checks them."""
    items = value if isinstance(value, list) else []
    bare = [item.get("point") if isinstance(item, Mapping) else item for item in items]
    _note([point for point in bare if _are_numbers(point, 2)], frame)


def _note(places: Sequence[Any], frame: Frame) -> None:
    noted = _noted.get()
    if noted is not None:
        noted += [StatedPlace(tuple(map(float, place)), frame) for place in places]


def _are_numbers(place: Any, count: int) -> bool:
    return (
        isinstance(place, list | tuple)
        and len(place) == count
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in place)
    )
