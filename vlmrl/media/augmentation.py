"""Images with boxes, each shown in several ways, so that few of them teach a small model to see.

A way: the image turned by a multiple of 90 degrees, mirrored or not, a crop of 55 to 100 % of its longer side
that keeps at least 85 % of every box, squeezed to a square, its light and colours shifted.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageEnhance

from vlmrl.schema import Box
from vlmrl.schema.media import PilImage

TRIES = 60
"""Crops that are drawn until one keeps the boxes; then the image stays whole."""
KEPT = 0.85
NARROWEST = 0.55
ASPECT = 4 / 3
ASPECTS = (0.85, 1.18)
"""Width over height of a crop, and the factors by which it varies."""
LIGHT = (0.8, 1.2)
"""Factors of brightness, contrast and colour."""
TINTS = (0.92, 1.08)
"""Factors of red, green and blue."""


def augment(
    image: PilImage, boxes: Sequence[Box], side: int, rng: random.Random
) -> tuple[PilImage, tuple[Box, ...]]:
    """Return an image in a way of its own, `side` x `side` pixels, with its boxes (unit square)."""
    for _ in range(rng.randrange(4)):
        image = image.transpose(Image.Transpose.ROTATE_90)  # counter-clockwise
        boxes = [_moved(box, box.y1, 1 - box.x2, box.y2, 1 - box.x1) for box in boxes]
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        boxes = [_moved(box, 1 - box.x2, box.y1, 1 - box.x1, box.y2) for box in boxes]
    region = _draw_crop(image.size, boxes, rng)
    image = _jitter(squeeze(image, side, region), rng)
    return image, tuple(_inside(box, region) for box in boxes)


def squeeze(image: PilImage, side: int, region: Box | None = None) -> PilImage:
    """Return an image, or a region of it (unit square), as a square of `side` pixels."""
    width, height = image.size
    region = region or Box(0, 0, 1, 1)
    pixels = (region.x1 * width, region.y1 * height, region.x2 * width, region.y2 * height)
    return image.resize((side, side), Image.Resampling.BOX, box=pixels)


def with_ramp(image: PilImage, share: float) -> PilImage:
    """Mix red with a ramp from left to right and blue with one from top to bottom, by this share.

    Each patch then says where it lies: a crutch for a model built from nothing, whose tower knows
    relative places only. A pretrained model needs none.
    """
    values = np.asarray(image, dtype=np.float32).copy()
    height, width, _ = values.shape
    values[..., 0] += share * (np.linspace(0, 255, width)[None, :] - values[..., 0])
    values[..., 2] += share * (np.linspace(0, 255, height)[:, None] - values[..., 2])
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def as_bmp(image: PilImage) -> bytes:
    """Return an image as the bytes of a BMP file, which costs next to nothing to write and read."""
    buffer = io.BytesIO()
    image.save(buffer, format="BMP")
    return buffer.getvalue()


def _draw_crop(size: tuple[int, int], boxes: Sequence[Box], rng: random.Random) -> Box:
    """Draw a region (unit square) that keeps enough of each box; all of the image if none is found."""
    width, height = size
    for _ in range(TRIES):
        aspect = ASPECT * rng.uniform(*ASPECTS)
        wide = min(rng.uniform(NARROWEST, 1.0) * max(size), width, height * aspect)
        w, h = min(1.0, wide / width), min(1.0, wide / aspect / height)  # rounding may lead past 1
        x, y = rng.uniform(0, 1 - w), rng.uniform(0, 1 - h)
        region = Box(x, y, min(1.0, x + w), min(1.0, y + h))
        if all(_kept(box, region) >= KEPT for box in boxes):
            return region
    return Box(0, 0, 1, 1)


def _kept(box: Box, region: Box) -> float:
    wide = min(box.x2, region.x2) - max(box.x1, region.x1)
    high = min(box.y2, region.y2) - max(box.y1, region.y1)
    return max(0.0, wide) * max(0.0, high) / ((box.x2 - box.x1) * (box.y2 - box.y1))


def _inside(box: Box, region: Box) -> Box:
    """Return a box in the unit square of a region, cut at its sides."""
    wide, high = region.x2 - region.x1, region.y2 - region.y1
    x1, x2 = ((x - region.x1) / wide for x in (box.x1, box.x2))
    y1, y2 = ((y - region.y1) / high for y in (box.y1, box.y2))
    return _moved(box, max(0.0, x1), max(0.0, y1), min(1.0, x2), min(1.0, y2))


def _moved(box: Box, x1: float, y1: float, x2: float, y2: float) -> Box:
    return Box(x1, y1, x2, y2, box.label, box.score)


def _jitter(image: PilImage, rng: random.Random) -> PilImage:
    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = kind(image).enhance(rng.uniform(*LIGHT))
    tints = np.array([rng.uniform(*TINTS) for _ in range(3)], dtype=np.float32)
    values = np.asarray(image, dtype=np.float32) * tints
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))
