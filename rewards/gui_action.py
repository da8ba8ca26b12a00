"""Decide whether a GUI action is of the right type and does the right thing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.answers import geometry, parsing, text
from vlmrl.schema import Completion, Point, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class GuiAction(AnswerVerifier):
    """Weighted mean of "the type is right" and "and so is what it acts on", in [0, 1].

    The answer is one object: `{"action": "CLICK", "position": [x, y]}` or `{"action": "TYPE",
    "value": "hello"}`. The truth is `fields["action"]`, with a place to hit in `boxes` or `points`,
    or a text to type in `text`; an action without either (HOME) is judged by its type alone. A
    point hits inside a true box, or within `radius` (unit square) of a true point. What it acts on
    counts only where the type is right.

    Published sets: TON (AITZ): the defaults (there type + value, each 1, value for clicks only).

    Refuses: several objects, points outside the image, nan; it never evaluates the text.

    Source: TON, arXiv 2505.16854; ScreenSpot for boxes.

    Raises:
        ValueError: `fields` has no "action".

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(fields={"action": "click"}, points=(Point(0.5, 0.5),))
    >>> judge(GuiAction(), "{'action': 'CLICK', 'value': None, 'position': [50, 55]}", truth).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("fields",)
    laws: ClassVar[Laws] = Laws(truth=("action",), options=({}, {"radius": 0.2}))

    radius: float = 0.14
    """Largest distance from a true point that is a hit, in the unit square."""
    type_weight: float = 1.0
    """Weight of the right type."""
    value_weight: float = 1.0
    """Weight of acting on the right thing."""

    def __post_init__(self) -> None:
        """Refuse weights that do not add up to a share."""
        if (
            min(self.type_weight, self.value_weight) < 0
            or self.type_weight + self.value_weight <= 0
        ):
            raise ValueError("weights are not negative and not both 0")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the one action in the answer."""
        right = (truth.fields or {}).get("action")
        if not isinstance(right, str):
            raise ValueError(f'expected a text in fields["action"], got {right!r}')
        stated, note = parsing.fields(answer)
        if stated is None or not isinstance(stated.get("action"), str):
            return Verdict(0.0, note=note or "no action in the object")
        if text.normalised(stated["action"]) != text.normalised(right):
            return Verdict(0.0, {"type": 0.0}, stated, "wrong type")
        value = self._value(answer, stated, truth, completion)
        if value is None:
            return Verdict(1.0, {"type": 1.0}, stated)
        total = self.type_weight + self.value_weight
        score = (self.type_weight + self.value_weight * value) / total
        return Verdict(score, {"type": 1.0, "value": float(value)}, stated)

    def _value(
        self, answer: str, stated: dict[str, Any], truth: Truth, completion: Completion
    ) -> bool | None:
        """Whether the action acts on the right thing; None if it acts on nothing."""
        if truth.text:
            typed = next(
                (stated[k] for k in ("value", "text") if isinstance(stated.get(k), str)), ""
            )
            return text.normalised(typed) in map(text.normalised, truth.text)
        if not truth.boxes and not truth.points:
            return None
        places, _ = parsing.points(answer, completion.frame)
        return len(places) == 1 and self._hits(places[0], truth)

    def _hits(self, point: Point, truth: Truth) -> bool:
        if truth.boxes:
            return any(geometry.inside(point, box) for box in truth.boxes)
        return any(
            math.hypot(point.x - p.x, point.y - p.y) <= self.radius for p in truth.points or ()
        )
