"""Measure how well outlines cover the true masks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import geometry, masks
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class MaskIou(AnswerVerifier):
    """IoU of P predicted polygons with N true masks, one to one: sum / max(N, P), in [0, 1].

    True masks are polygons or COCO run lengths. Masks are compared as pixels: on the grid of the
    run lengths, else on the media's, at most 1024 on its longer side. A predicted box is the
    polygon of its corners.

    Used by: LISA-grounding evaluations (Visual-RFT, VLM-R1).

    Refuses: polygons of fewer than 3 corners, over 100 polygons, nan, infinities; corners outside
    the image are moved to its edge; run lengths in an answer.

    Source: cocodataset/cocoapi masks; LISA, arXiv 2308.00692 (gIoU: the mean of these IoUs).

    Raises:
        ValueError: no true mask and not declared none; run lengths of different sizes.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> square = ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5))
    >>> answer = '{"polygon": [[0, 0], [50, 0], [50, 50], [0, 50]]}'
    >>> judge(MaskIou(), answer, Truth(masks=(square,))).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("masks",)
    laws: ClassVar[Laws] = Laws(
        junk="[ITEMS, ITEMS]", options=({}, {"threshold": 0.5}), any_order=True
    )

    threshold: float = 0.0
    """A score below it is 0: a grid of boxes hits everything a little."""

    def __post_init__(self) -> None:
        """Refuse a threshold outside of 0 to 1."""
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"expected threshold in 0 to 1, got {self.threshold}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match the polygons in the answer with the true masks."""
        if not truth.masks:
            raise ValueError("no true masks: declare the truth none if there is nothing to find")
        polygons, note = masks.polygons(answer, completion.frame)
        if not polygons:
            return Verdict(0.0, note=note)
        size = masks.raster_size(truth.masks, completion.frame)
        quality = masks.iou_matrix(polygons, truth.masks, size)
        total = math.fsum(float(quality[pair]) for pair in geometry.match(quality))
        share = total / max(len(polygons), len(truth.masks))
        score = share if share >= self.threshold else 0.0
        return Verdict(score, answer=tuple(polygons), note=note)
