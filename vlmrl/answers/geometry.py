"""Boxes, points and spans: spaces, conversion both ways, overlap and matching.

Inside vlmrl a box is xyxy in the unit square of the original media and a time is in seconds. This
is the one module that converts. It never guesses a space from the values it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmrl.answers import text
from vlmrl.schema import Box, Frame, Point, Space, Span

Array = NDArray[np.float64]

MIN_SIDE = 1e-6
"""Share of the media. A box with a shorter side has no area worth the name and is dropped."""


# -------------------------------------------------------------------------------------- spaces


def extent(frame: Frame, space: Space | None = None) -> tuple[float, float]:
    """Width and height of the media in a space (None: the frame's own); ValueError if it is not known."""
    space = space or frame.space
    if space == "norm1000":
        return 1000.0, 1000.0
    if space == "norm1":
        return 1.0, 1.0
    if space == "pixel":
        size = (frame.width, frame.height)
    elif space == "resized":
        size = (frame.resized_width, frame.resized_height)
    else:
        raise ValueError(f"expected a space pixel, resized, norm1000 or norm1, got {space!r}")
    if not size[0] or not size[1]:
        raise ValueError(f"expected the media's width and height for space {space!r}, got {size}")
    return float(size[0]), float(size[1])


def to_unit(
    x1: float, y1: float, x2: float, y2: float, frame: Frame
) -> tuple[float, float, float, float]:
    """Return four numbers in `frame.space` as xyxy in the unit square, unordered; ValueError as `extent`."""
    width, height = extent(frame)
    return x1 / width, y1 / height, x2 / width, y2 / height


def from_unit(
    box: Box, frame: Frame, space: Space | None = None
) -> tuple[float, float, float, float]:
    """Return a box as xyxy numbers in a space (None: the frame's own), unrounded; ValueError as `extent`."""
    width, height = extent(frame, space)
    return box.x1 * width, box.y1 * height, box.x2 * width, box.y2 * height


def point_from_unit(point: Point, frame: Frame, space: Space | None = None) -> tuple[float, float]:
    """Return a point as (x, y) numbers in a space (the frame's own when None), not rounded."""
    width, height = extent(frame, space)
    return point.x * width, point.y * height


# ------------------------------------------------------------------------------ typed geometry


def box(
    numbers: Sequence[float], frame: Frame, label: str | None = None, score: float | None = None
) -> Box | None:
    """Return the box of four xyxy numbers in `frame.space`: ordered, clipped, unit square.

    None if it has no area inside the media.

    Raises:
        ValueError: not four finite numbers, or the frame lacks the size that its space needs.
    """
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError(
            f"expected a box of four finite numbers [x1, y1, x2, y2], got {numbers!r:.80}"
        )
    x1, y1, x2, y2 = numbers
    return clean_box(*to_unit(x1, y1, x2, y2, frame), label, score)


def clean_box(
    x1: float, y1: float, x2: float, y2: float, label: str | None = None, score: float | None = None
) -> Box | None:
    """Return a box of unit-square numbers, ordered, then clipped; None if no area is left."""
    x1, x2 = (x1, x2) if x1 <= x2 else (x2, x1)
    y1, y2 = (y1, y2) if y1 <= y2 else (y2, y1)
    x1, y1 = max(x1, 0.0), max(y1, 0.0)
    x2, y2 = min(x2, 1.0), min(y2, 1.0)
    if x2 - x1 < MIN_SIDE or y2 - y1 < MIN_SIDE:
        return None
    return Box(x1, y1, x2, y2, label, score)


def point(x: float, y: float, frame: Frame, label: str | None = None) -> Point | None:
    """Return the point of two numbers in `frame.space`; None if it is outside the media.

    Raises:
        ValueError: a number is not finite, or the frame lacks the size that its space needs.
    """
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"expected a point of two finite numbers, got {(x, y)!r}")
    width, height = extent(frame)
    if not (0 <= x <= width and 0 <= y <= height):
        return None
    return Point(x / width, y / height, label)


def span(start: float, end: float, frame: Frame, label: str | None = None) -> Span | None:
    """Return a span of time in seconds, clipped to the media's duration if that is known.

    None if it runs backwards or nothing of it lies inside the media.

    Raises:
        ValueError: a number is not finite.
    """
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ValueError(f"expected a span of two finite numbers of seconds, got {(start, end)!r}")
    if start > end or end < 0 or (frame.duration is not None and start > frame.duration):
        return None
    end = end if frame.duration is None else min(end, frame.duration)
    return Span(max(start, 0.0), end, label)


def centre(a: Box) -> Point:
    """Return the centre of a box, unit square."""
    return Point((a.x1 + a.x2) / 2, (a.y1 + a.y2) / 2)


def inside(p: Point, a: Box) -> bool:
    """Return True if a point is in a box, its edge included."""
    return a.x1 <= p.x <= a.x2 and a.y1 <= p.y <= a.y2


# ----------------------------------------------------------------------------- overlap of boxes


def area(a: Box) -> float:
    """Return a box's area as a share of the media, in (0, 1]."""
    return (a.x2 - a.x1) * (a.y2 - a.y1)


def iou(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes, in [0, 1]."""
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    if width <= 0 or height <= 0:
        return 0.0
    overlap = width * height
    return overlap / (area(a) + area(b) - overlap)


def array(boxes: Iterable[Box]) -> Array:
    """Return boxes as a float64 array [K, 4], xyxy."""
    return np.array([b.xyxy for b in boxes], dtype=np.float64).reshape(-1, 4)


def overlap_shares(a: Array, b: Array, of_first: bool = False) -> Array:
    """Return how much of their union, or of box `a`, boxes [..., 4] share, in [0, 1]; they broadcast.

    A box turned inside out covers nothing, and two that cover nothing share nothing.
    """
    overlap, area_a, area_b = _overlap(a, b)
    whole = area_a if of_first else area_a + area_b - overlap
    return np.divide(overlap, whole, out=np.zeros_like(overlap), where=whole > 0)


def iou_matrix(a: Array, b: Array) -> Array:
    """IoU of every pair: [P, 4] and [N, 4], xyxy -> [P, N] in [0, 1]."""
    return overlap_shares(a[:, None], b[None, :])


def giou_matrix(a: Array, b: Array) -> Array:
    """Generalised IoU of every pair: [P, 4], [N, 4] -> [P, N] in (-1, 1].

    Source: Rezatofighi et al. 2019, arXiv 1902.09630: IoU - (hull - union) / hull.
    """
    overlap, union, hull = _areas(a, b)
    return overlap / union - (hull - union) / hull


def ciou_matrix(a: Array, b: Array, width: float = 1.0, height: float = 1.0) -> Array:
    """Complete IoU of every pair: [P, 4], [N, 4] -> [P, N] in (-2, 1].

    IoU - d²/c² - αv with d the distance of the centres, c the diagonal of the hull and v the
    difference of aspect ratios. `width` and `height` are the media's, since distance and aspect
    ratio depend on them.

    Source: Zheng et al. 2020, arXiv 1911.08287, eq. 10-12.
    """
    scale = np.array([width, height, width, height])
    a, b = a * scale, b * scale
    overlap, union, _ = _areas(a, b)
    ious = overlap / union
    low = np.minimum(a[:, None, :2], b[None, :, :2])
    high = np.maximum(a[:, None, 2:], b[None, :, 2:])
    diagonal = ((high - low) ** 2).sum(-1)
    shift = (a[:, None, :2] + a[:, None, 2:] - b[None, :, :2] - b[None, :, 2:]) / 2
    aspect_a = np.arctan((a[:, 2] - a[:, 0]) / (a[:, 3] - a[:, 1]))
    aspect_b = np.arctan((b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]))
    v = 4 / math.pi**2 * (aspect_a[:, None] - aspect_b[None, :]) ** 2
    alpha = np.divide(v, 1 - ious + v, out=np.zeros_like(v), where=v > 0)
    return ious - (shift**2).sum(-1) / diagonal - alpha * v


def _overlap(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return the intersection of boxes [..., 4] that broadcast, and the area of each."""
    size = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    sides = (np.clip(box[..., 2:] - box[..., :2], 0, None) for box in (a, b))
    area_a, area_b = (side[..., 0] * side[..., 1] for side in sides)
    return size[..., 0] * size[..., 1], area_a, area_b


def _areas(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return the intersection, union and hull of every pair, each [P, N]."""
    a, b = a[:, None, :], b[None, :, :]
    overlap, area_a, area_b = _overlap(a, b)
    hull = np.maximum(a[..., 2:], b[..., 2:]) - np.minimum(a[..., :2], b[..., :2])
    return overlap, area_a + area_b - overlap, hull[..., 0] * hull[..., 1]


def match(quality: Array) -> list[tuple[int, int]]:
    """Return one-to-one pairs (row, column) of a [P, N] matrix with the largest sum (Hungarian).

    Pairs of quality 0 or less are left out.
    """
    from scipy.optimize import linear_sum_assignment  # takes longer to import than all else here

    rows, columns = linear_sum_assignment(quality, maximize=True)
    return [(int(p), int(n)) for p, n in zip(rows, columns, strict=True) if quality[p, n] > 0]


# ------------------------------------------------------------------------------ overlap of spans


def span_iou(a: Span, b: Span) -> float:
    """Return the intersection over union of two spans, in [0, 1]; equal spans give 1."""
    return interval_iou([a], [b])


def merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Return the set that spans cover, as disjoint (start, end) intervals in order, seconds."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted((s.start, s.end) for s in spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def interval_iou(a: Iterable[Span], b: Iterable[Span]) -> float:
    """IoU of the sets that two collections of spans cover, in [0, 1]; equal sets give 1.

    Two empty collections give 0: whether "nothing" is right is the caller's to know.
    """
    left, right = merged(a), merged(b)
    if left == right:
        return 1.0 if left else 0.0
    overlap, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        overlap += max(0.0, end - start)
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    union = math.fsum(e - s for s, e in left) + math.fsum(e - s for s, e in right) - overlap
    return min(1.0, overlap / union) if union > 0 else 0.0


# --------------------------------------------------------------------------------------------------
# Pair predictions with truths one to one, in the ways that published runs do it.


How = Literal["hungarian", "greedy_iou", "greedy_confidence", "label_first"]
Pair = tuple[int, int]


class Labelled(Protocol):
    """A prediction or truth with a label, None where it has none."""

    @property
    def label(self) -> str | None:
        """Return the label."""


def agreement(found: Sequence[Labelled], right: Sequence[Labelled]) -> Array:
    """[P, N], 1 where the labels of a prediction and a truth agree, else 0.

    Labels agree if they are equal after normalisation, or if the truth has none. A prediction
    without a label agrees if all truths share one.
    """
    wanted = [text.label(b.label) for b in right]
    stated = [text.label(b.label) for b in found]
    only_one = len(set(wanted)) == 1
    agree = [[not w or s == w or (not s and only_one) for w in wanted] for s in stated]
    return np.array(agree, dtype=np.float64).reshape(len(found), len(right))


def pairs(
    quality: Array, threshold: float, how: How = "hungarian", scores: Sequence[float] = ()
) -> list[Pair]:
    """Pairs (prediction, truth) of a [P, N] quality matrix with quality at or above the threshold.

    `hungarian`: as many pairs as possible, among those the largest sum. `greedy_iou`: the best pair
    of all first (V-Triune, VLM-R1). `greedy_confidence`: predictions by falling `scores`, each
    takes its best free truth (Visual-RFT). `label_first`: truths in order, each takes its best free
    prediction (V-Triune). A quality of 0 never pairs.
    """
    allowed = np.where((quality >= threshold) & (quality > 0), quality, 0.0)
    if how == "hungarian":
        # One more pair outweighs any sum of qualities, each of which is at most 1.
        bonus = min(quality.shape) + 1.0
        return match(np.where(allowed > 0, allowed + bonus, 0.0))
    # Candidates in order, of which each takes its row and its column.
    order: Iterable[tuple[Any, Any]]
    if how == "greedy_iou":
        flat = np.argsort(-allowed, axis=None, kind="stable")
        order = zip(*np.unravel_index(flat, allowed.shape), strict=True)
    elif how == "greedy_confidence":
        falling = sorted(range(len(quality)), key=lambda p: -scores[p])
        order = ((p, n) for p in falling for n in np.argsort(-allowed[p], kind="stable"))
    else:
        best = np.argsort(-allowed, axis=0, kind="stable")
        order = ((p, n) for n in range(quality.shape[1]) for p in best[:, n])
    kept: dict[int, int] = {}
    columns: set[int] = set()
    for p, n in order:
        if p not in kept and n not in columns and allowed[p, n] > 0:
            kept[int(p)] = int(n)
            columns.add(int(n))
    return list(kept.items())
