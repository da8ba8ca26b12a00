"""Masks: polygons in the unit square, or COCO run-length encodings, as pixels.

A mask of the truth is a polygon (a tuple of (x, y) pairs, unit square) or a COCO RLE dictionary. A
model's mask is a polygon only: compressed run lengths go to C code that trusts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from vlmrl.schema import Frame, Point

MAX_SIDE = 1024
"""Longest side of the raster on which polygons are compared, pixels."""

Polygon = Sequence[tuple[float, float]]


def raster_size(truth: Sequence[Any], frame: Frame) -> tuple[int, int]:
    """(height, width) for comparing masks: that of an RLE, else the media's, within limits."""
    for mask in truth:
        if isinstance(mask, Mapping):
            height, width = mask["size"]
            return int(height), int(width)
    width, height = frame.width or MAX_SIDE, frame.height or MAX_SIDE
    shrink = min(1.0, MAX_SIDE / max(width, height))
    return max(1, round(height * shrink)), max(1, round(width * shrink))


def pixels(mask: Mapping[str, Any] | Polygon, size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask as a boolean array [height, width].

    Raises:
        ValueError: an RLE of another size.
    """
    height, width = size
    if isinstance(mask, Mapping):
        if tuple(mask["size"]) != size:
            raise ValueError(f"a mask of size {mask['size']} among masks of size {list(size)}")
        counts = mask["counts"]
        rle = coco.frPyObjects(dict(mask), height, width) if isinstance(counts, list) else mask
        return coco.decode(rle).astype(bool)
    flat = [value for x, y in mask for value in (x * width, y * height)]
    if len(mask) < 3:
        return np.zeros(size, dtype=bool)
    return coco.decode(coco.merge(coco.frPyObjects([flat], height, width))).astype(bool)


def iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """IoU of two boolean arrays, in [0, 1]; 0 if both are empty."""
    union = int(np.count_nonzero(a | b))
    return int(np.count_nonzero(a & b)) / union if union else 0.0


def contains(mask: Mapping[str, Any] | Polygon, p: Point) -> bool:
    """True if a point of the unit square lies in a mask."""
    if isinstance(mask, Mapping):
        height, width = int(mask["size"][0]), int(mask["size"][1])
        filled = pixels(mask, (height, width))
        return bool(filled[min(int(p.y * height), height - 1), min(int(p.x * width), width - 1)])
    inside = False
    for (x1, y1), (x2, y2) in zip(mask, [*mask[1:], mask[0]], strict=True):
        if (y1 > p.y) != (y2 > p.y) and p.x < (x2 - x1) * (p.y - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside
