"""Demonstrations from the truth: where a box lies in words, a box made looser on purpose."""

from __future__ import annotations

import random
from collections.abc import Sequence

from vlmrl.schema import Box

_ROWS = ("top", "", "bottom")
_COLUMNS = ("left", "", "right")


def cell_name(box: Box) -> str:
    """The cell of a 3 x 3 grid that holds the box's centre: "top left", "top", ... "center" ..."""
    column = min(2, int(3 * (box.x1 + box.x2) / 2))
    row = min(2, int(3 * (box.y1 + box.y2) / 2))
    return f"{_ROWS[row]} {_COLUMNS[column]}".strip() or "center"


def loosened(box: Box, steps: Sequence[float], rng: random.Random) -> Box:
    """The box with each side pushed outwards by a random one of `steps` (unit square), clipped.

    A model that only imitates such boxes stays inexact; a reward on the exact box leads past it.
    """
    x1, y1, x2, y2 = box.xyxy
    return Box(
        max(0.0, x1 - rng.choice(steps)),
        max(0.0, y1 - rng.choice(steps)),
        min(1.0, x2 + rng.choice(steps)),
        min(1.0, y2 + rng.choice(steps)),
        box.label,
    )
