"""What a harness gives for one answer, and what scorers read of a sample."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmrl.schema import Frame, Sample

__all__ = [
    "Score",
    "Scorer",
    "accepted_texts",
    "letter_scorer",
    "option_letters",
    "right_letter",
    "texts",
]


@dataclass(frozen=True, slots=True)
class Score:
    """What a harness gives for one answer, in [0, 1], and whether its rule found an answer at all.

    `value` is None where the harness leaves the answer out of its number, denominator included; `said`
    is what the rule read, for aggregates that count what was said; `chance` is that of a guess among the
    options, 0 where there are none; `detail` is what an aggregate needs besides.
    """

    value: float | None
    read: bool = True
    said: str = ""
    chance: float = 0.0
    detail: Any = None


Scorer = Callable[[str, Sample, Frame], Score]


def option_letters(sample: Sample) -> list[str]:
    """Return the letters on offer: A to D where the question itself lists the options."""
    count = len(sample.truth.options or ()) or 4
    return list(string.ascii_uppercase[:count])


def right_letter(sample: Sample) -> str:
    """Return the letter of the right option."""
    choice, options = str(sample.truth.choice), sample.truth.options or ()
    is_text = choice in options and choice not in option_letters(sample)
    return string.ascii_uppercase[options.index(choice)] if is_text else choice.upper()


def texts(sample: Sample) -> dict[str, str]:
    """Return the texts of the options by letter."""
    return dict(zip(string.ascii_uppercase, sample.truth.options or (), strict=False))


def letter_scorer(find: Callable[[str, Sample], str | None]) -> Scorer:
    """Make a scorer of a rule that finds a letter."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        found = find(answer, sample)
        right = found == right_letter(sample)
        return Score(float(right), bool(found), found or "", 1 / len(option_letters(sample)))

    return score


def accepted_texts(sample: Sample) -> tuple[str, ...]:
    """Return the accepted texts: the text, the number or the option."""
    truth = sample.truth
    if truth.text is not None:
        return truth.text
    if truth.number is not None:
        whole = float(truth.number).is_integer()
        return (str(int(truth.number)) if whole else str(truth.number),)
    return (str(truth.choice),)
