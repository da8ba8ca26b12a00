"""Decide whether predicted points lie where they should."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from vlmrl.answers import geometry, masks, parsing
from vlmrl.benchmark_rules import VERSIONS, Harness, places
from vlmrl.schema import AnswerForm, Completion, Truth, Verdict
from vlmrl.schema import Point as UnitPoint
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Point(AnswerVerifier):
    """How well P predicted points hit N true places, one to one: sum / max(N, P), in [0, 1].

    `measure`: `inside` 1 if the point lies in the true box or mask; `gaussian` exp(-d^2 / (2
    sigma^2)), d the distance to the true point or to the centre of the true box; `distance` 1 if d
    is at most `radius`. `binary`: only the full score counts. Distances, `sigma` and `radius` are in
    the unit square. Where the truth has points only, `inside` means `distance`. A predicted box
    stands for its centre. `official`: ScreenSpot by the rule of `lmms_eval` or `vlmevalkit`
    (`places.screenspot_hit`).

    Published sets: GUI-G1 hit, ScreenSpot: the defaults; TON: `measure: distance, radius: 0.14`.

    Refuses: points outside the image, nan, infinities, more points than places (each lowers the
    score).

    Source: GUI-G1, arXiv 2505.15810; ScreenSpot (SeeClick), arXiv 2401.10935; TON, arXiv
    2505.16854.

    Raises:
        ValueError: nothing to hit and not declared none; `gaussian` or `distance` with masks.

    Example:
    >>> from vlmrl.schema import Box
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Point(), "(25, 25)", Truth(boxes=(Box(0.0, 0.0, 0.5, 0.5),))).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("points", "boxes", "masks")
    laws: ClassVar[Laws] = Laws(
        truth=("points",),
        junk="[ITEMS, ITEMS]",
        options=(
            {},
            {"binary": True},
            {"measure": "gaussian"},
            {"measure": "distance", "radius": 0.14},
        ),
        any_order=True,
    )

    measure: Literal["inside", "gaussian", "distance"] = "inside"
    """`inside`: 1 if the point is in the true box or mask; `gaussian`: exp(-d^2 / (2 sigma^2)), d the
    distance to the true point or to the centre of the true box; `distance`: 1 if d is at most `radius`."""
    binary: bool = False
    """1 only if every place is hit and no other point is named, else 0: no share of several points."""
    sigma: float = 0.1
    """Width of the Gaussian, in the unit square."""
    radius: float = 0.14
    """Largest distance of a hit, in the unit square."""
    official: Harness | None = None
    """ScreenSpot by the rule of a harness (`places.screenspot_hit`); to compare, not to train."""

    def __post_init__(self) -> None:
        """Refuse widths that are not positive."""
        if self.sigma <= 0 or self.radius <= 0:
            raise ValueError("expected sigma and radius above 0")

    def answer_form(self) -> AnswerForm:
        """Ask for points, whatever the place to hit."""
        return AnswerForm(("points",))

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Match the points in the answer with the true places."""
        if self.official:
            return self._official(answer, truth, completion)
        num_right = len(truth.boxes or truth.masks or truth.points or ())
        if not num_right:
            raise ValueError("no true place: declare the truth none if there is nothing to find")
        points, note = parsing.points(answer, completion.frame)
        if not points:
            return Verdict(0.0, note=note)
        quality = np.array([self._qualities(p, truth) for p in points])
        matched = geometry.match(quality)
        total = math.fsum(float(quality[pair]) for pair in matched)
        share = total / max(len(points), num_right)
        score = float(share == 1) if self.binary else share
        return Verdict(score, answer=tuple(points), note=note)

    def _qualities(self, p: UnitPoint, truth: Truth) -> list[float]:
        """How well one point hits each true place."""
        if self.measure == "inside" and truth.boxes:
            return [float(geometry.inside(p, box)) for box in truth.boxes]
        if self.measure == "inside" and truth.masks:
            return [float(masks.contains(mask, p)) for mask in truth.masks]
        targets = truth.points or [geometry.centre(box) for box in truth.boxes or ()]
        if not targets:
            raise ValueError(f"measure {self.measure!r} needs true points or boxes, not masks")
        away = [math.hypot(p.x - t.x, p.y - t.y) for t in targets]
        if self.measure == "gaussian":
            return [math.exp(-((d / self.sigma) ** 2) / 2) for d in away]
        return [float(d <= self.radius) for d in away]

    def _official(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        assert self.official is not None
        if not truth.boxes or len(truth.boxes) != 1:
            raise ValueError("the official ScreenSpot rule needs one true box")
        hit = places.screenspot_hit(answer, truth.boxes[0], completion.frame, self.official)
        return Verdict(float(hit), note=VERSIONS[self.official])
