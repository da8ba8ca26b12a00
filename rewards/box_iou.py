"""Measure how well one predicted box covers the one true box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import geometry, parsing, text
from vlmrl.benchmark_rules import VERSIONS, Harness
from vlmrl.schema import Box, Completion, Frame, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class BoxIou(AnswerVerifier):
    """IoU of the one predicted box with the one true box, in [0, 1].

    `threshold`: an IoU below it scores 0; in a config it may be a schedule over training progress.
    `binary`: 1 from the threshold on. `measure`: `giou` and `ciou` score (value + 1) / 2, floored
    at 0. `iou_weight`, `centre_weight`, `size_weight`: the weighted mean of the overlap, of "the
    centre lies in the true box", and of how near the four edges are (harmonic mean of 1 -
    |difference|, in shares of the image). `check_label`: a label that the answer states must be the
    truth's, if it has one. `several`: what more than one box scores, `refuse` 0 or `first` that of
    the first. `official`: RefCOCO by the rule of `lmms_eval` or `vlmevalkit`
    (`places.refcoco_box`).

    Published sets: VLM-R1 REC: `several: first`; V-Triune grounding: `threshold: {schedule: [[0,
    0.85], [0.1, 0.95], [0.25, 0.99]]}`; Visual-RFT LISA, GPG: `measure: giou`; GUI-G1: `iou_weight:
    0.25, centre_weight: 1, size_weight: 0.125` (divided by their sum 1.375); RefCOCO accuracy:
    `threshold: 0.5, binary: true`.

    Refuses: several boxes, boxes without area, nan, infinities, booleans; a box is ordered and
    clipped to the image before it is compared.

    Source: VLM-R1, arXiv 2504.07615; GUI-G1, arXiv 2505.15810, eq. 6-8.
    Differs: no pixel is added to sides; the size term is clipped, so that it cannot exceed 1.

    Raises:
        ValueError: the truth has no box or several (use `detection`).

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(boxes=(Box(0.0, 0.0, 0.5, 1.0),))
    >>> judge(BoxIou(), '{"bbox_2d": [0, 0, 50, 50]}', truth).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("boxes",)
    laws: ClassVar[Laws] = Laws(
        truth=("one box",),
        junk="[ANSWER, ANSWER]",
        options=(
            {},
            {"threshold": 0.5},
            {"threshold": 0.5, "binary": True},
            {"measure": "giou"},
            {"measure": "ciou"},
            {"iou_weight": 0.25, "centre_weight": 1.0, "size_weight": 0.125},
            {"several": "first"},
            {"threshold": 0.85},
        ),
        loose=({"official": "lmms_eval"}, {"official": "vlmevalkit"}),
    )

    threshold: float = 0.0
    """An IoU below it scores 0; in a config it may be a schedule over training progress."""
    binary: bool = False
    """Score 1 from the threshold on."""
    measure: Literal["iou", "giou", "ciou"] = "iou"
    """`giou` and `ciou` score (value + 1) / 2, floored at 0."""
    iou_weight: float = 1.0
    """Weight of the overlap in the mean."""
    centre_weight: float = 0.0
    """Weight of "the centre is in the true box"."""
    size_weight: float = 0.0
    """Weight of how near the four edges are: the harmonic mean of 1 - |difference|, in shares of the
    image."""
    check_label: bool = True
    """Whether a label that the answer states must be the truth's, if it has one."""
    several: Literal["refuse", "first"] = "refuse"
    """What more than one box scores: `refuse` 0, `first` that of the first."""
    official: Harness | None = None
    """RefCOCO by the rule of a harness (`places.refcoco_box`); to compare, not to train."""

    def __post_init__(self) -> None:
        """Refuse options that would pay everything."""
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"expected threshold in [0, 1], got {self.threshold}")
        if self.binary and self.threshold == 0:
            raise ValueError("binary needs a threshold above 0")
        weights = (self.iou_weight, self.centre_weight, self.size_weight)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"expected weights that are not negative and not all 0, got {weights}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the one box in the answer."""
        assert truth.boxes is not None
        if len(truth.boxes) != 1:
            raise ValueError(f"expected one true box, got {len(truth.boxes)}: use detection")
        right = truth.boxes[0]
        if self.official:
            return self._official(answer, completion.frame, right)
        boxes, note = parsing.boxes(answer, completion.frame)
        if not boxes:
            return Verdict(0.0, note=note)
        if len(boxes) > 1 and self.several == "refuse":
            return Verdict(0.0, answer=tuple(boxes), note=f"expected one box, got {len(boxes)}")
        box = boxes[0]
        if self.check_label and _contradicts(box.label, right.label):
            return Verdict(0.0, answer=(box,), note=f"label {box.label!r:.40} is wrong")
        overlap = geometry.iou(box, right)
        if overlap < self.threshold:
            return Verdict(0.0, {"iou": overlap}, (box,), "below the threshold")
        score = 1.0 if self.binary else self._score(box, right, overlap, completion.frame)
        return Verdict(score, {"iou": overlap}, (box,), note)

    def _score(self, box: Box, right: Box, overlap: float, frame: Frame) -> float:
        if self.measure != "iou":
            overlap = self._mapped(box, right, frame)
        if not self.centre_weight and not self.size_weight:
            return overlap
        hit = float(geometry.inside(geometry.centre(box), right))
        total = self.iou_weight + self.centre_weight + self.size_weight
        return (
            self.iou_weight * overlap
            + self.centre_weight * hit
            + self.size_weight * _near(box, right)
        ) / total

    def _mapped(self, box: Box, right: Box, frame: Frame) -> float:
        a, b = geometry.array([box]), geometry.array([right])
        if self.measure == "giou":
            value = geometry.giou_matrix(a, b)
        else:
            value = geometry.ciou_matrix(a, b, frame.width or 1, frame.height or 1)
        return max(0.0, (float(value[0, 0]) + 1) / 2)

    def _official(self, answer: str, frame: Frame, right: Box) -> Verdict:
        from vlmrl.benchmark_rules import places

        assert self.official is not None
        corners = places.refcoco_box(answer, frame, self.official)
        if corners is None:
            return Verdict(0.0, note="no box found by the official rule")
        overlap = places.raw_iou(corners, right.xyxy)
        score = float(overlap >= self.threshold) if self.binary else overlap
        return Verdict(score, {"iou": overlap}, note=VERSIONS[self.official])


def _contradicts(stated: str | None, right: str | None) -> bool:
    return bool(stated and right) and text.label(stated) != text.label(right)


def _near(box: Box, right: Box) -> float:
    """Harmonic mean of 1 - |difference| of the four edges, in [0, 1] (GUI-G1's size term)."""
    shares = [1 - abs(a - b) for a, b in zip(box.xyxy, right.xyxy, strict=True)]
    return 4 / sum(1 / share for share in shares) if min(shares) > 0 else 0.0
