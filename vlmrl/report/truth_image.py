"""The image of a row with its truth drawn on it, as `vlmrl data explain --image` writes it."""

from __future__ import annotations

from pathlib import Path

from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.media_types import PilImage
from vlmrl.truths.drawn import draw_places


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
    drawn, count = draw_places(image, sample.truth)
    try:
        drawn.save(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be written as an image: {error}") from error
    return f"image     {path}, with {count} marks drawn"
