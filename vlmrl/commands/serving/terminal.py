"""An image in the terminal: two pixels a character, in as many colours as it has."""

from __future__ import annotations

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from vlmrl.media_types import PilImage

__all__ = ["show_image"]

MAX_COLUMNS = 80


def show_image(image: PilImage, console: Console) -> None:
    """Print an image, scaled to the width of the terminal; nothing where the output is no terminal."""
    if not console.is_terminal:
        return
    columns = min(console.width, MAX_COLUMNS, image.width)
    rows = max(1, round(image.height * columns / image.width / 2))
    small = image.convert("RGB").resize((columns, 2 * rows), Image.Resampling.BOX)
    pixels = np.asarray(small).tolist()  # [2 * rows, columns, 3]
    found = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            found.append(Segment("▀", style))
        found.append(Segment.line())
    console.print(Segments(found), end="")
