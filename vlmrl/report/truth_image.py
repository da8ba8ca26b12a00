"""The image of a row with its truth drawn on it, as `vlmrl data explain --image` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import ImageDraw

from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.media_types import PilImage
from vlmrl.schema import Truth
from vlmrl.truths.base import Mark
from vlmrl.truths.json_form import marks, to_json

__all__ = ["draw_truth", "write_truth_image"]

COLOUR = (0, 170, 60)
SHADE = (255, 255, 255)
"""Drawn under the colour, so that it shows on every ground."""


def write_truth_image(source: Source, index: int, path: Path) -> str:
    """Write the image that a row's coordinates refer to, with its truth drawn; return a line about it.

    Raises:
        UserError: the row is bad or its main medium is no image, or the file cannot be written.
    """
    sample = source.sample(index)
    decoded = decode(sample, source.access, source.reading)
    image = None if sample.main_medium is None else decoded[sample.main_medium]
    if not isinstance(image, PilImage):
        raise UserError(f"row {index}: expected an image to draw the truth on, got none")
    drawn, count = draw_truth(image, sample.truth)
    try:
        drawn.save(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be written as an image: {error}") from error
    return f"image     {path}, with {count} marks drawn"


def draw_truth(image: Any, truth: Truth) -> tuple[Any, int]:
    """Return a copy of an image with every box, point and outline of a truth, and how many there are."""
    copy = image.convert("RGB")
    pen = ImageDraw.Draw(copy)
    found = [mark for mark in marks(to_json(truth)) if mark.shape != "span"]
    width = max(1, min(copy.size) // 200)
    for mark in found:
        xs = [x * copy.width for x in mark.numbers[::2]]
        ys = [y * copy.height for y in mark.numbers[1::2]]
        for colour, wide in ((SHADE, width + 2), (COLOUR, width)):
            _draw(pen, mark, xs, ys, colour, wide)
        if mark.label:
            pen.text(
                (min(xs) + 2, min(ys) + 1),
                str(mark.label),
                COLOUR,
                stroke_width=1,
                stroke_fill=SHADE,
            )
    return copy, len(found)


def _draw(
    pen: Any, mark: Mark, xs: Sequence[float], ys: Sequence[float], colour: Any, width: int
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
