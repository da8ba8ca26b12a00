"""Decide whether the answer states the right number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Number(AnswerVerifier):
    """Score 1 if the number that the answer states is the right one, else 0.

    `tolerance`: largest absolute difference that is right; `relative`: largest share of the truth;
    `decimals`: both are rounded to that many places first; `percent`: a percent sign divides by
    100. Numbers may have thousands separators, a unit, an exponent, or be written in words.

    Published sets: VLM-R1 numeric: the defaults; Video-R1, HumanOmniV2: `decimals: 2`;
    Visionary-R1: `percent: true`.

    Refuses: several different numbers, a number that is denied or left open (`not 7`, `7 or more`), of
    which words or signs make another one (`7 million`, `7²`, `minus 7`, `7+7`), nan, infinities, `1e999`,
    over 20 digits, digits that are not ASCII, ordinals.

    Source: Video-R1's numerical reward.
    Differs: it does not ask that both sides have, or lack, a decimal point.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Number(), "about 1,200 m", Truth(number=1200)).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("number",)
    laws: ClassVar[Laws] = Laws(
        junk="ANSWER 7777.5",
        options=({}, {"tolerance": 1.0}, {"relative": 0.05}, {"decimals": 2}, {"percent": True}),
    )

    tolerance: float = 0.0
    """Largest absolute difference that is right."""
    relative: float = 0.0
    """Largest difference that is right, as a share of the truth."""
    decimals: int | None = None
    """Both numbers are rounded to this many places first."""
    percent: bool = False
    """Whether a percent sign divides by 100."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the one number in the answer."""
        assert truth.number is not None
        stated, note = parsing.number(answer, self.percent)
        if stated is None:
            return Verdict(0.0, note=note)
        right, number = truth.number, stated
        if self.decimals is not None:
            right, number = round(right, self.decimals), round(number, self.decimals)
        allowed = max(self.tolerance, self.relative * abs(right))
        return Verdict(float(abs(number - right) <= allowed), answer=stated)
