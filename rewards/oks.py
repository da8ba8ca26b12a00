"""How near predicted keypoints are to the true ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.answers import geometry
from vlmrl.answers.geometry import agreement
from vlmrl.schema import Completion, Frame, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws
from vlmrl.truths import keypoints
from vlmrl.truths.keypoints import Instance

COCO_SIGMAS = (
    0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062, 0.107, 0.107,
    0.087, 0.087, 0.089, 0.089,
)  # fmt: skip


@dataclass(frozen=True)
class Oks(AnswerVerifier):
    """Object keypoint similarity of P predicted with N true instances, one to one, in [0, 1].

    OKS is the mean of exp(-d^2 / (2 area (2 sigma)^2)) over the labelled keypoints (v > 0) of a
    true instance, d in pixels where the media's size is known. The sum over the pairs is divided by
    max(N, P). A keypoint that the answer leaves out (v = 0) counts 0; what it says of visibility is
    not graded otherwise.

    Used by: COCO keypoint evaluations of pose models.

    Refuses: another number of keypoints than the truth's, nan, infinities, booleans; instances
    beyond the true ones lower the score, over 200 are none.

    Source: cocodataset/cocoapi, `COCOeval.computeOks`. Differs: COCO compares a keypoint left out
    as one at (0, 0), and ranks instances by confidence instead of counting superfluous ones.

    Raises:
        ValueError: the truth has no keypoints and is not declared none, or not as many as sigmas.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(more={"keypoints": (Instance(((0.5, 0.5, 2), (0.0, 0.0, 0)), area=0.25),)})
    >>> judge(Oks(sigmas=(0.1, 0.1)), '{"keypoints": [[50, 50, 2], [9, 9, 2]]}', truth).score
    1.0
    """

    needs: ClassVar[tuple[str | tuple[str, ...], ...]] = ("keypoints",)
    laws: ClassVar[Laws] = Laws(junk="[ITEMS, ITEMS]", any_order=True)

    sigmas: tuple[float, ...] = COCO_SIGMAS
    """Per-keypoint constants, one for each, greater than 0; default: those of the 17 COCO keypoints."""
    threshold: float = 0.0
    """An OKS below it counts 0, in [0, 1]."""

    def __post_init__(self) -> None:
        """Refuse sigmas that are not positive, and a threshold outside [0, 1]."""
        if not self.sigmas or min(self.sigmas) <= 0:
            raise ValueError(f"expected sigmas greater than 0, got {self.sigmas}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"expected a threshold in [0, 1], got {self.threshold}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match the instances in the answer with the true ones."""
        right: tuple[Instance, ...] = truth.value("keypoints")
        if not right:
            raise ValueError(
                "no true keypoints: declare the truth none if there is nothing to find"
            )
        for instance in right:
            if len(instance.spots) != len(self.sigmas):
                raise ValueError(
                    f"expected {len(self.sigmas)} keypoints, one a sigma, got {len(instance.spots)}"
                )
        instances, note = keypoints.read(answer, completion.frame)
        if not instances:
            return Verdict(0.0, note=note)
        quality = np.array(
            [[similarity(f, r, self.sigmas, completion.frame) for r in right] for f in instances]
        )
        quality = np.where(quality >= self.threshold, quality, 0.0) * agreement(instances, right)
        total = math.fsum(float(quality[pair]) for pair in geometry.match(quality))
        return Verdict(
            min(1.0, total / max(len(instances), len(right))), answer=tuple(instances), note=note
        )


def similarity(
    instance: Instance, right: Instance, sigmas: tuple[float, ...], frame: Frame
) -> float:
    """Return the OKS of two instances of the unit square, in [0, 1]."""
    if len(instance.spots) != len(right.spots):
        return 0.0
    width, height = frame.width or 1.0, frame.height or 1.0
    area = keypoints.scale_of(right) * width * height
    terms = []
    for (x, y, stated), (a, b, v), sigma in zip(instance.spots, right.spots, sigmas, strict=True):
        if v:
            away = ((x - a) * width) ** 2 + ((y - b) * height) ** 2
            terms.append(math.exp(-away / (2 * area * (2 * sigma) ** 2)) if stated else 0.0)
    return math.fsum(terms) / len(terms) if terms else 0.0
