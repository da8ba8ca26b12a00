"""Measure how many fields of a JSON answer are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class JsonFields(AnswerVerifier):
    """Weighted share of the true fields that a JSON object states rightly, in [0, 1].

    `weights`: by field, 1 where absent. `ordered`: a field counts only if those before it (in the
    order of the weights, then of the truth) are right. Texts are compared normalised, numbers as
    numbers.

    Published sets: Q-Insight degradation: `weights: {distortion_class: 0.25, severity: 0.75},
    ordered: true`.

    Refuses: several JSON objects, lists of values for one field, booleans for numbers; additional
    fields gain nothing.

    Source: Q-Insight, arXiv 2503.22679.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(fields={"class": "blur", "severity": "slight"})
    >>> judge(JsonFields(), '{"class": "Blur", "severity": "serious"}', truth).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("fields",)
    laws: ClassVar[Laws] = Laws(
        junk="ANSWER ANSWER",
        options=({}, {"ordered": True}, {"weights": {"a": 0.25, "b": 0.75}, "ordered": True}),
    )

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight by field; 1 where absent."""
    ordered: bool = False
    """Whether a field counts only if those before it (in the order of the weights, then of the truth)
    are right."""

    def __post_init__(self) -> None:
        """Refuse negative weights."""
        if any(weight < 0 for weight in self.weights.values()):
            raise ValueError(f"expected weights that are not negative, got {dict(self.weights)}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare field by field."""
        if not truth.fields:
            raise ValueError("no true fields: declare the truth none if there are none")
        stated, note = parsing.fields(answer)
        if stated is None:
            return Verdict(0.0, note=note)
        gained, total, open_ = 0.0, 0.0, True
        names = [n for n in self.weights if n in truth.fields]
        for name in names + [n for n in truth.fields if n not in self.weights]:
            weight = self.weights.get(name, 1.0)
            right = name in stated and _same(stated[name], truth.fields[name])
            open_ = open_ and right
            gained += weight * (open_ if self.ordered else right)
            total += weight
        if total <= 0:
            raise ValueError("the weights of all true fields are 0")
        return Verdict(min(1.0, gained / total), answer=stated, note=note)


def _same(stated: Any, right: Any) -> bool:
    if isinstance(stated, bool) or isinstance(right, bool) or stated is None or right is None:
        return stated is right
    if isinstance(stated, int | float) and isinstance(right, int | float):
        return stated == right
    if isinstance(stated, str) and isinstance(right, str):
        return text.equal(stated, right)
    return False
