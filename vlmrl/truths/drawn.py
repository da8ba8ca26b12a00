"""Places on the image that they are in: boxes, points and outlines, drawn on a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import ImageDraw

from vlmrl.answers import parsing
from vlmrl.schema import Frame, Truth
from vlmrl.schema.media import PilImage
from vlmrl.truths.base import Mark
from vlmrl.truths.json_form import marks, to_json

GREEN = (0, 170, 60)
"""Colour of what is true."""
RED = (220, 30, 30)
"""Colour of what a candidate says."""
SHADE = (255, 255, 255)
"""Drawn under the colour, so that it shows on every ground."""
MAX_MARKS = 100
"""Marks that are drawn of one value: more would hide the image."""

Colour = tuple[int, int, int]


def draw_places(
    image: PilImage, truth: Truth, colour: Colour = GREEN, labels: bool = True
) -> tuple[PilImage, int]:
    """Return a copy of an image with the boxes, points and outlines of a truth, and how many there are.

    `labels` says whether their labels are written beside them.
    """
    copy = image.convert("RGB")
    pen = ImageDraw.Draw(copy)
    drawn = [mark for mark in marks(to_json(truth)) if mark.shape != "span"][:MAX_MARKS]
    width = max(1, min(copy.size) // 200)
    for mark in drawn:
        xs = [x * copy.width for x in mark.numbers[::2]]
        ys = [y * copy.height for y in mark.numbers[1::2]]
        for ink, wide in ((SHADE, width + 2), (colour, width)):
            _draw(pen, mark, xs, ys, ink, wide)
        if mark.label and labels:
            corner = (min(xs) + 2, min(ys) + 1)
            pen.text(corner, str(mark.label), colour, stroke_width=1, stroke_fill=SHADE)
    return copy, len(drawn)


def read_places(answer: str, frame: Frame) -> Truth:
    """Return the boxes, else the points, else (where the medium lasts) the spans that an answer states.

    Coordinates are read in the frame's space. Empty where none can be read.
    """
    if len(answer) > parsing.MAX_CHARS:
        return Truth()
    if boxes := parsing.boxes(answer, frame)[0]:
        return Truth(boxes=tuple(boxes))
    if points := parsing.points(answer, frame)[0]:
        return Truth(points=tuple(points))
    if frame.duration is not None and (spans := parsing.spans(answer, frame)[0]):
        return Truth(spans=tuple(spans))
    return Truth()


def _draw(
    pen: Any, mark: Mark, xs: Sequence[float], ys: Sequence[float], colour: Colour, width: int
) -> None:
    if mark.shape == "point":
        radius = 2 * width
        pen.ellipse((xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius), fill=colour)
        return
    if mark.shape == "box":
        (x1, x2), (y1, y2) = xs, ys
        xs, ys = (x1, x2, x2, x1), (y1, y1, y2, y2)
    corners = list(zip(xs, ys, strict=True))
    pen.line([*corners, *corners[:2]], fill=colour, width=width)
