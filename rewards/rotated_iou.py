"""How well rotated boxes cover the true ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.answers import geometry
from vlmrl.answers.geometry import agreement
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws
from vlmrl.truths import rotated_boxes
from vlmrl.truths.rotated_boxes import Corner, RotatedBox


@dataclass(frozen=True)
class RotatedIou(AnswerVerifier):
    """IoU of P predicted with N true rotated boxes, one to one: sum / max(N, P), in [0, 1].

    The overlap of two boxes is cut exactly, so the IoU is the same in every space of coordinates.

    Used by: evaluations of oriented object detection (DOTA).

    Refuses: boxes that are not convex or have no area, nan, infinities, booleans; boxes beyond the
    true ones lower the score, over 1000 are none.

    Source: DOTA, arXiv 1711.10398; Sutherland and Hodgman 1974 for the overlap. Differs: DOTA
    reports mAP over a data set; this is one image without confidences.

    Raises:
        ValueError: the truth has no rotated boxes and is not declared none.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> square = RotatedBox(((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5)))
    >>> truth = Truth(more={"rotated_boxes": (square,)})
    >>> judge(RotatedIou(), '{"rotated_box": [25, 25, 50, 50, 90]}', truth).score
    1.0
    """

    needs: ClassVar[tuple[str | tuple[str, ...], ...]] = ("rotated_boxes",)
    laws: ClassVar[Laws] = Laws(junk="[ITEMS, ITEMS]", any_order=True)

    threshold: float = 0.0
    """An IoU below it counts 0, in [0, 1]."""
    check_labels: bool = True
    """A pair of boxes with different labels counts 0; false: ignore labels."""

    def __post_init__(self) -> None:
        """Refuse a threshold outside [0, 1]."""
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"expected a threshold in [0, 1], got {self.threshold}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match the boxes in the answer with the true ones."""
        right: tuple[RotatedBox, ...] = truth.value("rotated_boxes")
        if not right:
            raise ValueError("no true boxes: declare the truth none if there is nothing to find")
        boxes, note = rotated_boxes.read(answer, completion.frame)
        if not boxes:
            return Verdict(0.0, note=note)
        iou = np.array([[rotated_iou(f.corners, r.corners) for r in right] for f in boxes])
        quality = np.where(iou >= self.threshold, iou, 0.0)
        quality = quality * agreement(boxes, right) if self.check_labels else quality
        total = math.fsum(float(quality[pair]) for pair in geometry.match(quality))
        return Verdict(
            min(1.0, total / max(len(boxes), len(right))), answer=tuple(boxes), note=note
        )


def rotated_iou(a: Sequence[Corner], b: Sequence[Corner]) -> float:
    """Return the IoU of two convex polygons, corners counter-clockwise, in [0, 1]."""
    if _apart(a, b):
        return 0.0
    overlap = _area(_clip(a, b))
    union = _area(a) + _area(b) - overlap
    # Equal areas differ by rounding: 1 is the most.
    return min(1.0, overlap / union) if union > 0 else 0.0


def _apart(a: Sequence[Corner], b: Sequence[Corner]) -> bool:
    """Return True if the upright boxes around two polygons do not overlap: most pairs do not."""
    return any(
        max(p[axis] for p in first) <= min(p[axis] for p in other)
        for first, other in ((a, b), (b, a))
        for axis in (0, 1)
    )


def _clip(subject: Sequence[Corner], window: Sequence[Corner]) -> list[Corner]:
    """Return the part of a polygon inside a convex one: cut off along each side in turn."""
    kept = list(subject)
    for (x1, y1), (x2, y2) in zip(window, [*window[1:], window[0]], strict=True):
        sides = [(x2 - x1) * (y - y1) - (y2 - y1) * (x - x1) for x, y in kept]
        cut: list[Corner] = []
        for i, (x, y) in enumerate(kept):
            before, here = sides[i - 1], sides[i]
            if (before < 0 < here) or (here < 0 < before):
                (px, py), t = kept[i - 1], before / (before - here)
                cut.append((px + t * (x - px), py + t * (y - py)))
            if here >= 0:
                cut.append((x, y))
        kept = cut
    return kept


def _area(corners: Sequence[Corner]) -> float:
    """Return the area of a polygon (shoelace formula), relative to its first corner."""
    if len(corners) < 3:
        return 0.0
    x0, y0 = corners[0]
    moved = [(x - x0, y - y0) for x, y in corners]
    pairs = zip(moved, [*moved[1:], moved[0]], strict=True)
    return abs(math.fsum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
