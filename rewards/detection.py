"""Measure how well a list of labelled boxes agrees with the true list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from vlmrl.answers import geometry, parsing, text
from vlmrl.answers.average_precision import average_precision
from vlmrl.answers.geometry import Array, How, Pair, agreement, pairs
from vlmrl.schema import AnswerForm, Box, Completion, Frame, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws

Part = Literal[
    "iou", "truth_iou", "pair_iou", "f1", "precision", "recall", "criterion_recall", "completeness",
    "map", "ap50", "ap75",
]  # fmt: skip


_V_TRIUNE: dict[str, Any] = {
    "cut": True,
    "weights": {"truth_iou": 0.7, "completeness": 0.3},
    "penalty": 0.6,
}
_GRIFFON: dict[str, Any] = {
    "matching": "l1_giou",
    "quality": "giou",
    "cut": True,
    "weights": {"pair_iou": 1.0, "criterion_recall": 1.0},
}


@dataclass(frozen=True)
class Detection(AnswerVerifier):
    """A weighted mean of measures of P predicted boxes against N true ones, in [0, 1].

    Pairs are one to one and of agreeing labels; Q is the sum of their IoU, M how many reach
    `threshold`. Measures (keys of `weights`): `iou` Q / max(N, P); `truth_iou` Q / N; `pair_iou` Q
    / min(N, P); `precision` M / P; `recall` M / N; `criterion_recall` recall after `saturate`; `f1`
    2M / (N + P); `completeness` 1 - ((N - M)/N + (P - M)/P) / 2; `map`, `ap50`, `ap75` by the COCO
    rules on this one image. Only `iou`, `f1` and `precision` cannot gain from additional boxes; the
    others are for published runs, best with a `penalty`.

    `matching`: see `matching.pairs`; or `l1_giou`: all min(N, P) pairs whose sum of |corner - corner| in
    pixels, less 1 for agreeing labels, less gIoU, is least, of which those with quality count. `threshold`:
    one, or several to average over. `cut`: pairs below the threshold add nothing to Q. `quality: giou`
    measures pairs by generalised IoU, floored at 0. `saturate`: a quality from here on counts as 1.
    `check_labels: false` ignores labels. `penalty`: the score is multiplied by penalty^|P - N|;
    `length_factor`: by min(1, N / P). `use_confidence`: stated confidences order the predictions for AP and
    greedy_confidence, else all are 1.

    Published sets: V-Triune: `matching: label_first (or greedy_iou), cut: true, weights:
    {truth_iou: 0.7, completeness: 0.3}, penalty: 0.6, threshold: {schedule: [[0, 0.85], [0.1,
    0.95], [0.25, 0.99]]}`, or `threshold: [0.5, 0.55, ..., 0.95, 0.99]`; Visual-RFT: `matching:
    greedy_confidence, use_confidence: true, cut: true`, with the verifier `confidence`; VLM-R1
    weighted_sum: `matching: greedy_iou, cut: true, weights: {truth_iou: 0.7, completeness: 0.3}`;
    VLM-R1 od_ap, od_ap50: `weights: {map: 1}`, `{ap50: 1}`; VLM-R1 odLength: `weights: {map: 1},
    length_factor: true`; Griffon Vision-R1: `matching: l1_giou, quality: giou, cut: true, weights:
    {pair_iou: 1, criterion_recall: 1}, saturate: {schedule: [[0, 0.75], [0.5, 0.9]]}, threshold:
    {schedule: [[0, 0.5], [0.5, 0.75]]}`.

    Refuses: wrong labels, duplicates and grids of boxes (P counts them all), over 1000 boxes, boxes
    without area, nan, infinities. An explicit `[]` scores 1 only where the truth is declared none.

    Source: V-Triune, arXiv 2505.18129; Visual-RFT, arXiv 2503.01785; VLM-R1, arXiv 2504.07615;
    Vision-R1 (Griffon), arXiv 2503.18013. Differs: Griffon's class
    probability is 1 or 0, as an answer in words has none.

    Raises:
        ValueError: the truth has no boxes and is not declared none.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(boxes=(Box(0, 0, 0.5, 0.5, "cat"), Box(0.5, 0.5, 1, 1, "dog")))
    >>> judge(Detection(), '[{"bbox_2d": [0, 0, 50, 50], "label": "cat"}]', truth).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("boxes",)
    laws: ClassVar[Laws] = Laws(
        junk="[ITEMS, ITEMS]",
        options=(
            {},
            {"weights": {"f1": 1.0}},
            {"weights": {"iou": 1.0, "f1": 1.0, "precision": 1.0}},
            {"cut": True, "threshold": [0.5, 0.75, 0.95, 0.99]},
            {"check_labels": False},
        ),
        loose=(
            {"matching": "greedy_iou", "cut": True},
            {"weights": {"map": 1.0}, "length_factor": True},
            {"matching": "label_first", **_V_TRIUNE, "threshold": 0.85},
            {"matching": "greedy_iou", **_V_TRIUNE, "threshold": 0.99},
            {"matching": "greedy_confidence", "use_confidence": True, "cut": True},
            {"matching": "greedy_iou", "cut": True, "weights": _V_TRIUNE["weights"]},
            {"weights": {"map": 1.0}},
            {"weights": {"ap50": 1.0, "ap75": 1.0, "recall": 1.0}},
            {**_GRIFFON, "saturate": 0.75},
        ),
        any_order=True,
    )

    weights: Mapping[Part, float] = field(default_factory=lambda: {"iou": 1.0})
    """Weight by measure."""
    matching: How | Literal["l1_giou"] = "hungarian"
    """How pairs are found, see `matching.pairs`; `l1_giou`: by the least distance of corners in pixels, less
    label, less gIoU."""
    threshold: float | tuple[float, ...] = 0.5
    """Smallest quality of a hit; one, or several to average over."""
    cut: bool = False
    """Whether pairs below the threshold add nothing to Q."""
    quality: Literal["iou", "giou"] = "iou"
    """`giou`: pairs are measured by generalised IoU, floored at 0."""
    saturate: float = 1.0
    """A quality from here on counts as 1."""
    check_labels: bool = True
    """Whether labels must agree."""
    penalty: float = 1.0
    """The score is multiplied by penalty^|P - N|."""
    length_factor: bool = False
    """Whether the score is multiplied by min(1, N / P)."""
    use_confidence: bool = False
    """Whether stated confidences order the predictions for AP and `greedy_confidence`; else all are 1."""

    def __post_init__(self) -> None:
        """Refuse options that lead out of [0, 1]."""
        if not self.weights or min(self.weights.values()) < 0 or sum(self.weights.values()) <= 0:
            raise ValueError(
                f"expected weights that are not negative and not all 0, got {dict(self.weights)}"
            )
        if not 0 < self.penalty <= 1:
            raise ValueError(f"expected penalty in (0, 1], got {self.penalty}")
        if not all(0 <= t <= 1 for t in self._thresholds()):
            raise ValueError(f"expected threshold in [0, 1], got {self.threshold}")

    def answer_form(self) -> AnswerForm:
        """Ask for confidences where they count."""
        return AnswerForm(self.needs, confidence=self.use_confidence)

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match and measure."""
        right = truth.boxes
        if not right:
            raise ValueError("no true boxes: declare the truth none if there is nothing to find")
        boxes, note = parsing.boxes(answer, completion.frame)
        if not boxes:
            return Verdict(0.0, note=note)
        iou, quality, cheapest = self._compared(boxes, right, completion.frame)
        parts = self._measured(quality, cheapest, self._scores(boxes))
        if {"map", "ap50", "ap75"} & set(self.weights):
            parts |= self._precisions(iou, boxes, right)
        total = sum(self.weights.values())
        score = math.fsum(weight * parts[part] for part, weight in self.weights.items()) / total
        score *= self.penalty ** abs(len(boxes) - len(right))
        if self.length_factor:
            score *= min(1.0, len(right) / len(boxes))
        return Verdict(min(1.0, score), parts, tuple(boxes), note)

    def _thresholds(self) -> tuple[float, ...]:
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)

    def _compared(
        self, stated: Sequence[Box], right: Sequence[Box], frame: Frame
    ) -> tuple[Array, Array, list[Pair]]:
        """IoU of every pair and its quality (0 where labels do not agree), [P, N]; the pairs of `l1_giou`.

        In pixels where the size is known: whole pixels then give the very IoU of COCOeval.
        """
        size = np.array([frame.width or 1, frame.height or 1] * 2, dtype=np.float64)
        a, b = (np.round(geometry.array(boxes) * size, 9) for boxes in (stated, right))
        iou, agree = geometry.iou_matrix(a, b), agreement(stated, right)
        quality, cheapest = iou, list[Pair]()
        if self.quality == "giou" or self.matching == "l1_giou":
            giou = geometry.giou_matrix(a, b)
            quality = np.clip(giou, 0.0, 1.0) if self.quality == "giou" else iou
            cost = np.abs(a[:, None] - b[None]).sum(-1) - agree - giou
            cheapest = [*zip(*linear_sum_assignment(cost), strict=True)]
        return iou, quality * agree if self.check_labels else quality, cheapest

    def _measured(
        self, quality: Array, cheapest: list[Pair], scores: Sequence[float]
    ) -> dict[str, float]:
        """Every measure but AP, each the mean over the thresholds."""

        def paired(threshold: float) -> list[tuple[int, int]]:
            if self.matching != "l1_giou":
                return pairs(quality, threshold, self.matching, scores)
            return [(p, n) for p, n in cheapest if quality[p, n] >= threshold and quality[p, n] > 0]

        rows = []
        for threshold in self._thresholds():
            hits = paired(threshold)
            counted = hits if self.cut else paired(0.0)
            rows.append(self._row(quality, hits, counted))
        if len(rows) == 1:
            return rows[0]
        return {part: math.fsum(row[part] for row in rows) / len(rows) for part in rows[0]}

    def _row(
        self, quality: Array, hits: list[tuple[int, int]], counted: list[tuple[int, int]]
    ) -> dict[str, float]:
        num_found, num_right = quality.shape
        total = math.fsum(self._saturated(float(quality[pair])) for pair in counted)
        precision, recall = len(hits) / num_found, len(hits) / num_right
        return {
            "iou": total / max(num_found, num_right),
            "truth_iou": total / num_right,
            "pair_iou": total / min(num_found, num_right),
            "precision": precision,
            "recall": recall,
            "criterion_recall": self._saturated(recall),
            "f1": 2 * len(hits) / (num_found + num_right),
            "completeness": 1 - ((1 - recall) + (1 - precision)) / 2,
        }

    def _saturated(self, quality: float) -> float:
        return 1.0 if quality >= self.saturate else quality

    def _scores(self, boxes: Sequence[Box]) -> list[float]:
        return [(b.score or 0.0) if self.use_confidence else 1.0 for b in boxes]

    def _precisions(
        self, iou: Array, boxes: Sequence[Box], right: Sequence[Box]
    ) -> dict[str, float]:
        """AP by the COCO rules; an unlabelled prediction is of the only true class, if any."""
        labels = [text.label(b.label) if self.check_labels else "" for b in right]
        stated = [text.label(b.label) if self.check_labels else "" for b in boxes]
        if len(set(labels)) == 1:
            stated = [s or labels[0] for s in stated]
        ap = average_precision(iou, stated, self._scores(boxes), labels)
        return dict(zip(("map", "ap50", "ap75"), ap, strict=True))
