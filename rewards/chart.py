"""Relaxed accuracy of answers about charts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing, text
from vlmrl.benchmark_rules import VERSIONS, Harness, words
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws

_NUMBER = re.compile(r"[$€£]?\s?[-+]?[0-9][0-9,]{0,30}(?:\.[0-9]{1,20})?\s?%?")
_YEAR = re.compile(r"(?:1[89]|20)[0-9]{2}")


@dataclass(frozen=True)
class Chart(AnswerVerifier):
    """Score 1 if the answer is the accepted text, or within 5 % of the accepted number, else 0.

    Where the truth is a number (currency signs, thousands separators and % aside), `tolerance` of
    it may be missed; a whole number from 1800 to 2099 is taken for a year and must be met. Other
    truths are compared as normalised text. `official`: ChartQA's rule as in `lmms_eval` and
    `vlmevalkit` (`words.relaxed`).

    Used by: ChartQA; Mixed-R1 (chart), V-Triune (chart).

    Refuses: several different numbers, nan, infinities, a year that is merely near.

    Source: ChartQA, arXiv 2203.10244, section 5.1.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Chart(), "$1,240", Truth(text=("1200",))).score
    1.0
    >>> judge(Chart(), "2010", Truth(text=("2019",))).score
    0.0
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(
        truth=("text", "numeral"), junk="ANSWER 7777", loose=({"official": "lmms_eval"},)
    )

    tolerance: float = 0.05
    """Share of the true number by which the answer may miss it."""
    official: Harness | None = None
    """ChartQA's rule as in a harness (`words.relaxed`); to compare, not to train."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted answer."""
        assert truth.text is not None
        if self.official:
            right = any(
                words.relaxed(answer, accepted, self.official, self.tolerance)
                for accepted in truth.text
            )
            return Verdict(float(right), answer=answer, note=VERSIONS[self.official])
        return Verdict(float(any(self._meets(answer, t) for t in truth.text)), answer=answer)

    def _meets(self, answer: str, wanted: str) -> bool:
        wanted = wanted.strip()
        if not _NUMBER.fullmatch(wanted) or _YEAR.fullmatch(wanted):
            return text.equal(answer, wanted)
        right, _ = parsing.number(wanted)
        stated, _ = parsing.number(answer)
        if right is None or stated is None:
            return False
        return abs(stated - right) <= self.tolerance * abs(right)
