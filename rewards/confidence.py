"""Decide whether the confidences stated with boxes tell hits from misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from vlmrl.answers import geometry, parsing
from vlmrl.answers.geometry import agreement, pairs
from vlmrl.schema import AnswerForm, Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Confidence(AnswerVerifier):
    """Confidence in hits, less confidence in misses, over max(N, P); 0 if nothing is hit.

    Boxes are matched by falling confidence; a hit has IoU at or above `threshold` with a free true
    box of its label. A box that states no confidence in [0, 1] counts as c = 0. `form`: `linear` a
    hit gains c, a miss loses c; `brier` a hit gains 1 - (1 - c)^2, a miss loses c^2; `visual_rft`
    the published mean of c for hits and 1 - c for misses.

    Published sets: Visual-RFT, GPG: `form: visual_rft`. That form can be cheated: boxes of
    confidence 0 that hit nothing pay 1 each. In the others a box that hits nothing never gains.

    Refuses: confidences outside [0, 1], nan, text.

    Source: Visual-RFT, arXiv 2503.01785, eq. 5.

    Example:
    >>> from vlmrl.schema import Box
    >>> from vlmrl.scoring.verifier import judge
    >>> answer = '[{"bbox_2d": [0, 0, 50, 50], "confidence": 0.9}]'
    >>> judge(Confidence(), answer, Truth(boxes=(Box(0, 0, 0.5, 0.5),))).score
    0.9
    """

    needs: ClassVar[tuple[str, ...]] = ("boxes",)
    laws: ClassVar[Laws] = Laws(
        junk="[ITEMS, ITEMS]",
        options=({}, {"form": "brier"}),
        loose=({"form": "visual_rft"},),
        any_order=True,
    )

    threshold: float = 0.5
    """Smallest IoU of a hit."""
    form: Literal["linear", "brier", "visual_rft"] = "linear"
    """`linear`: a hit gains c, a miss loses c; `brier`: a hit gains 1 - (1 - c)^2, a miss loses c^2;
    `visual_rft`: the published mean of c for hits and 1 - c for misses, which can be cheated."""

    def answer_form(self) -> AnswerForm:
        """Ask for confidences."""
        return AnswerForm(self.needs, confidence=True)

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match, then compare confidences with hits."""
        right = truth.boxes
        if not right:
            raise ValueError("no true boxes: declare the truth none if there is nothing to find")
        boxes, note = parsing.boxes(answer, completion.frame)
        if not boxes:
            return Verdict(0.0, note=note)
        iou = geometry.iou_matrix(geometry.array(boxes), geometry.array(right))
        stated = np.array([b.score or 0.0 for b in boxes])
        matched = pairs(
            iou * agreement(boxes, right), self.threshold, "greedy_confidence", stated.tolist()
        )
        if not matched:
            return Verdict(0.0, answer=tuple(boxes), note="nothing is hit")
        hit = np.zeros(len(boxes), dtype=bool)
        hit[[p for p, _ in matched]] = True
        if self.form == "visual_rft":
            score = float(np.where(hit, stated, 1 - stated).mean())
        elif self.form == "linear":
            score = float(np.where(hit, stated, -stated).sum()) / max(len(boxes), len(right))
        else:
            gains = np.where(hit, 1 - (1 - stated) ** 2, -(stated**2))
            score = float(gains.sum()) / max(len(boxes), len(right))
        return Verdict(max(0.0, score), {"hits": float(hit.mean())}, tuple(boxes), note)
