"""Measure how near a stated quantity is to the true one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing
from vlmrl.schema import AnswerForm, Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws

MRA_LEVELS = tuple(0.5 + 0.05 * k for k in range(10))


@dataclass(frozen=True)
class Regression(AnswerVerifier):
    """Closeness of the stated number a to the true number g, in [0, 1].

    `measure`: `relative` 1 - min(1, |a - g| / |g|); `symmetric` 1 - |a - g| / max(|a|, |g|),
    floored at 0; `absolute` 1 - min(1, |a - g| / tolerance); `step` 1 if |a - g| < tolerance; `mra`
    the share of levels t in 0.5, 0.55 ... 0.95 with |a - g| / |g| < 1 - t. `key`: the number stands
    under this key of a JSON object.

    Published sets: Video-R1, HumanOmniV2: the defaults; Q-Insight: `measure: step, tolerance: 0.35,
    key: rating`; VSI-Bench, Video-R1's evaluation: `measure: mra`; VTool-R1: `measure: symmetric`.

    Refuses: several different numbers, nan, infinities, `1e999`.

    Source: Video-R1, arXiv 2503.21776; Q-Insight, arXiv 2503.22679; MRA: VSI-Bench, arXiv
    2412.14171.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Regression(), "15", Truth(number=20)).score
    0.75
    """

    needs: ClassVar[tuple[str, ...]] = ("number",)
    laws: ClassVar[Laws] = Laws(
        junk="ANSWER 7777.5",
        options=tuple(
            {"measure": name} for name in ("relative", "symmetric", "absolute", "step", "mra")
        ),
    )

    measure: Literal["relative", "symmetric", "absolute", "step", "mra"] = "relative"
    """`relative`: 1 - min(1, |a - g| / |g|); `symmetric`: 1 - |a - g| / max(|a|, |g|), floored at 0;
    `absolute`: 1 - min(1, |a - g| / tolerance); `step`: 1 if |a - g| < tolerance; `mra`: the share of
    levels t in 0.5, 0.55 ... 0.95 with |a - g| / |g| < 1 - t."""
    tolerance: float = 0.35
    """The tolerance of `absolute` and `step`."""
    key: str | None = None
    """The key of a JSON object under which the number is; absent: the answer is the number."""

    def __post_init__(self) -> None:
        """Refuse a tolerance that is not positive."""
        if self.tolerance <= 0:
            raise ValueError(f"expected tolerance above 0, got {self.tolerance}")

    def answer_form(self) -> AnswerForm:
        """Ask for the key."""
        return AnswerForm(self.needs, key=self.key)

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Measure the one number in the answer."""
        assert truth.number is not None
        if self.key is not None:
            fields, note = parsing.fields(answer)
            answer = str((fields or {}).get(self.key, ""))
        stated, note = parsing.number(answer)
        if stated is None:
            return Verdict(0.0, note=note)
        return Verdict(self._closeness(stated, truth.number), answer=stated)

    def _closeness(self, stated: float, right: float) -> float:
        away = abs(stated - right)
        if away == 0:
            return 1.0
        if self.measure == "step":
            return float(away < self.tolerance)
        if self.measure == "absolute":
            return 1 - min(1.0, away / self.tolerance)
        if self.measure == "symmetric":
            return 1 - min(1.0, away / max(abs(stated), abs(right)))
        relative = away / abs(right) if right else 1.0
        if self.measure == "mra":
            # 1e-12: an error of exactly 1 - t must not count for being rounded down.
            return sum(relative < 1 - t - 1e-12 for t in MRA_LEVELS) / len(MRA_LEVELS)
        return 1 - min(1.0, relative)
