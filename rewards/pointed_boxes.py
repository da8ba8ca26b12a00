"""Measure how well boxes, each with a point in its object, agree with the true ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vlmrl.answers import geometry, parsing
from vlmrl.answers.geometry import Array
from vlmrl.schema import AnswerForm, Box, Completion, Point, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws
from vlmrl.truths.points import places_to_point_at


@dataclass(frozen=True)
class PointedBoxes(AnswerVerifier):
    """P objects, each a box and a point, against N true ones: a sum over pairs / (3 max(N, P)), in [0, 1].

    A pair earns 1 for an IoU above `threshold`, 1 for corners that are on average nearer than
    `box_distance`, and 1 for points nearer than `point_distance`, where the stated point lies in its own
    box. Pairs are one to one, with the largest sum. Distances are in pixels of the image scaled to
    `side` x `side`, as the published data are. True points belong to the true boxes in their order;
    without them the centres of the boxes are meant.

    Published sets: VisionReasoner, Seg-Zero's later releases: the defaults with weight 3.

    Refuses: boxes without a point, points outside of their boxes, duplicates (P counts them all), nan,
    infinities. An explicit `[]` scores 1 only where the truth is declared none.

    Source: VisionReasoner, arXiv 2505.12081, and the code in dvlab-research/Seg-Zero. Differs:
    the published IoU counts pixels of both edges, and more than 120 objects are cut there.

    Raises:
        ValueError: the truth has no boxes and is not declared none, or other numbers of points and boxes.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(boxes=(Box(0, 0, 0.5, 0.5),), points=(Point(0.2, 0.2),))
    >>> judge(PointedBoxes(), '[{"bbox_2d": [0, 0, 50, 50], "point_2d": [20, 20]}]', truth).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("boxes",)
    laws: ClassVar[Laws] = Laws(truth=("pointed boxes",), junk="[ITEMS, ITEMS]", any_order=True)

    threshold: float = 0.5
    """IoU above which boxes agree."""
    box_distance: float = 10.0
    """Mean distance of the four numbers of a box below which boxes agree, pixels."""
    point_distance: float = 30.0
    """Distance below which points agree, pixels."""
    side: float = 840.0
    """Sides in pixels of the image in which distances are measured."""

    def __post_init__(self) -> None:
        """Refuse distances that nothing is below."""
        if min(self.box_distance, self.point_distance, self.side) <= 0:
            raise ValueError("expected box_distance, point_distance and side above 0")

    def answer_form(self) -> AnswerForm:
        """Ask for a point of each box."""
        return AnswerForm(self.needs, pointed=True)

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match the objects of the answer with the true ones."""
        right, points = truth.boxes, places_to_point_at(truth)
        if not right:
            raise ValueError("no true boxes: declare the truth none if there is nothing to find")
        if len(points) != len(right):
            raise ValueError(
                f"expected a true point for each of {len(right)} boxes, got {len(points)}"
            )
        objects, note = parsing.pointed_boxes(answer, completion.frame)
        if not objects:
            return Verdict(0.0, note=note)
        measured = self._measured([*objects], [*zip(right, points, strict=True)])
        pairs = geometry.match(sum(measured.values(), np.zeros((len(objects), len(right)))))
        longest = max(len(objects), len(right))
        parts = {
            name: math.fsum(float(of[pair]) for pair in pairs) / longest
            for name, of in measured.items()
        }
        score = math.fsum(parts.values()) / len(parts)
        return Verdict(min(1.0, score), parts, tuple(box for box, _ in objects), note)

    def _measured(
        self, stated: list[tuple[Box, Point]], right: list[tuple[Box, Point]]
    ) -> dict[str, Array]:
        """Return what each pair earns for its IoU, its boxes and its points. All [P, N]."""
        both = (stated, right)
        a, b = (self._pixels([box.xyxy for box, _ in objects]) for objects in both)
        p, n = (self._pixels([(point.x, point.y) for _, point in objects]) for objects in both)
        corners = np.abs(a[:, None] - b[None]).mean(-1)
        away = np.linalg.norm(p[:, None] - n[None], axis=-1)
        inside = np.array([[geometry.inside(point, box)] for box, point in stated])
        return {
            "iou": (geometry.iou_matrix(a, b) > self.threshold).astype(float),
            "box": (corners < self.box_distance).astype(float),
            "point": ((away < self.point_distance) & inside).astype(float),
        }

    def _pixels(self, numbers: list[Any]) -> Array:
        """Return numbers of the unit square in pixels; whole ones are whole to the bit."""
        return np.round(np.array(numbers, dtype=np.float64) * self.side, 9)
