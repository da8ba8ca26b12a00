"""Masks: polygons in the unit square, or COCO run-length encodings, as pixels.

A mask of the truth is a polygon (a tuple of (x, y) pairs, unit square) or a COCO RLE dictionary. A
model's mask is a polygon only: compressed run lengths go to C code that trusts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco

from vlmrl.answers import geometry, parsing
from vlmrl.answers.geometry import Array
from vlmrl.schema import Frame, Point, Polygon

KEYS = ("polygon", "segmentation", "mask", "points")
MAX_MASKS = 100
MAX_SIDE = 1024
"""Longest side of the raster on which polygons are compared, pixels."""

INNER_SIDE = 256
"""Sides of the raster on which the middle of a polygon is looked for, pixels."""

Corners = Sequence[tuple[float, float]]
"""A polygon of the truth may be any sequence of corners."""


def raster_size(truth: Sequence[object], frame: Frame) -> tuple[int, int]:
    """(height, width) for comparing masks: that of an RLE, else the media's, within limits."""
    for mask in truth:
        if isinstance(mask, Mapping):
            height, width = mask["size"]
            return int(height), int(width)
    width, height = frame.width or MAX_SIDE, frame.height or MAX_SIDE
    shrink = min(1.0, MAX_SIDE / max(width, height))
    return max(1, round(height * shrink)), max(1, round(width * shrink))


def iou_matrix(
    found: Sequence[Corners], right: Sequence[Mapping[str, object] | Corners], size: tuple[int, int]
) -> Array:
    """IoU of every pair on a raster (height, width): [P, N] in [0, 1]; ValueError: an RLE of another size."""
    a = [encoded(mask, size) for mask in found]
    b = [encoded(mask, size) for mask in right]
    values = np.asarray(coco.iou(a, b, [0] * len(b)), dtype=np.float64).reshape(len(a), len(b))
    return np.nan_to_num(values, nan=0.0)  # two empty masks


def encoded(mask: Mapping[str, Any] | Corners, size: tuple[int, int]) -> Any:
    """Convert a mask to a compressed COCO RLE of (height, width)."""
    height, width = size
    if isinstance(mask, Mapping):
        if (int(mask["size"][0]), int(mask["size"][1])) != size:
            raise ValueError(f"a mask of size {mask['size']} among masks of size {list(size)}")
        is_raw = isinstance(mask["counts"], list)
        return coco.frPyObjects(dict(mask), height, width) if is_raw else dict(mask)
    flat = [value for x, y in mask for value in (x * width, y * height)]
    return coco.merge(coco.frPyObjects([flat], height, width))


def polygons(answer: str, frame: Frame) -> tuple[list[Polygon], str]:
    """Return the polygons an answer lists, unit square, corners moved into the media, and a note.

    Spellings: `{"polygon": [[x, y], ...]}` (also `segmentation`, `mask`, `points`; a flat list of
    numbers will do), lists of them, bare lists of at least three pairs, and every spelling of a
    box.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    if len(answer) > parsing.MAX_CHARS:
        return [], f"answer longer than {parsing.MAX_CHARS} characters"
    width, height = geometry.extent(frame)
    outlines: list[Polygon] = []
    for corners in _outlines(parsing.values(answer)):
        outlines.append(
            Polygon(
                (min(max(x / width, 0.0), 1.0), min(max(y / height, 0.0), 1.0)) for x, y in corners
            )
        )
    if not outlines:
        boxes, _ = parsing.boxes(answer, frame)
        outlines = [
            Polygon([(b.x1, b.y1), (b.x2, b.y1), (b.x2, b.y2), (b.x1, b.y2)]) for b in boxes
        ]
    if len(outlines) > MAX_MASKS:
        return [], f"more than {MAX_MASKS} masks"
    return outlines, "" if outlines else "no outline found in the answer"


def _outlines(value: Any) -> Iterator[list[tuple[float, float]]]:
    """Yield the corners of every polygon in a value."""
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if key in value), None)
        if _all_numbers(value) and len(value) >= 6 and len(value) % 2 == 0:
            yield list(zip(value[::2], value[1::2], strict=True))
            return
    if not isinstance(value, list):
        return
    if len(value) >= 3 and all(_all_numbers(v) and len(v) == 2 for v in value):
        yield [(float(x), float(y)) for x, y in value]
    else:
        for part in value:
            yield from _outlines(part)


def _all_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(parsing.is_number, value))


def contains(mask: Mapping[str, Any] | Corners, p: Point) -> bool:
    """Return whether a point of the unit square is in a mask."""
    if isinstance(mask, Mapping):
        height, width = int(mask["size"][0]), int(mask["size"][1])
        filled = coco.decode(encoded(mask, (height, width)))
        return bool(filled[min(int(p.y * height), height - 1), min(int(p.x * width), width - 1)])
    inside = False
    for (x1, y1), (x2, y2) in zip(mask, [*mask[1:], mask[0]], strict=True):
        if (y1 > p.y) != (y2 > p.y) and p.x < (x2 - x1) * (p.y - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside


def inner_point(mask: Mapping[str, object] | Corners) -> Point:
    """Return the point of a mask that is farthest from its edge, on a raster of INNER_SIDE or an RLE's."""
    from scipy import ndimage  # as in `geometry.match`: it takes long to import

    size = raster_size([mask], Frame(INNER_SIDE, INNER_SIDE))
    filled = np.pad(coco.decode(encoded(mask, size)), 1)
    depth = ndimage.distance_transform_edt(filled)[1:-1, 1:-1]
    row, column = np.unravel_index(int(depth.argmax()), depth.shape)
    return Point((int(column) + 0.5) / size[1], (int(row) + 0.5) / size[0])
