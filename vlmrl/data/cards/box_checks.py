"""A check on the boxes that data state before they are converted: is the space the declared one?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.schema import Frame

__all__ = ["check_inside"]


def check_inside(boxes: Sequence[Any], frame: Frame) -> None:
    """Refuse xyxy boxes in `frame.space` that run backwards or reach more than a pixel outside.

    A model's box may be clipped and turned; a true box like that is in another space or format than
    declared. Anything that is not a list of four numbers is left to `json_form.read`.

    Raises:
        UserError: names the box and the image.
    """
    width, height = geometry.extent(frame)
    slack = 1.0 if frame.space != "norm1" else 1e-3
    for box in boxes:
        if not _is_four_numbers(box):
            continue
        x1, y1, x2, y2 = box
        if x1 >= x2 or y1 >= y2:
            raise UserError(f"expected a box with x1 < x2 and y1 < y2, got {list(box)}")
        if min(x1, y1) < -slack or x2 > width + slack or y2 > height + slack:
            raise UserError(
                f"box {list(box)} lies outside 0..{width:g} x 0..{height:g}: expected x1, y1, x2, y2 in "
                f"the space {frame.space!r}"
            )


def _is_four_numbers(box: Any) -> bool:
    return (
        isinstance(box, list | tuple)
        and len(box) == 4
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in box)
    )
