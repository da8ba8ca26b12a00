"""Decide whether the answer states the right count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Count(AnswerVerifier):
    """Score 1 if the whole number that the answer states is the right count, else 0.

    `graded`: 1 - min(1, |a - g| / max(1, g)), which still pays the near miss.

    Used by: V-Triune, TON, R1-V (CLEVR counting).

    Refuses: several different numbers, fractions, negative counts.

    Source: R1-V's counting reward.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Count(graded=True), "three cells", Truth(number=4)).score
    0.75
    """

    needs: ClassVar[tuple[str, ...]] = ("number",)
    laws: ClassVar[Laws] = Laws(
        truth=("count",), junk="ANSWER 7777", options=({}, {"graded": True})
    )

    graded: bool = False
    """Score 1 - min(1, |a - g| / max(1, g)), which still pays the near miss."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the one number in the answer."""
        assert truth.number is not None
        stated, note = parsing.number(answer)
        if stated is None:
            return Verdict(0.0, note=note)
        if stated < 0 or stated != int(stated):
            return Verdict(0.0, answer=stated, note="no count")
        wrong = abs(stated - truth.number)
        score = 1 - min(1.0, wrong / max(1.0, truth.number)) if self.graded else float(wrong == 0)
        return Verdict(score, answer=stated)
