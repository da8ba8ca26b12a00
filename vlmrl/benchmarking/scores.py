"""What a harness gives for one answer, what scorers read of a sample, and makers of common scorers."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmrl.benchmark_rules import letters, places
from vlmrl.schema import Frame, Sample


@dataclass(frozen=True, slots=True)
class Score:
    """What a harness gives for one answer, in [0, 1], and whether its rule found an answer at all.

    `value` is None where the harness leaves the answer out of its number, denominator included; `reading`
    is what the rule read, for aggregates that count words; `chance` is that of a guess among the
    options, 0 where there are none; `detail` is what an aggregate needs besides.
    """

    value: float | None
    read: bool = True
    reading: str = ""
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


def accepted_texts(sample: Sample) -> tuple[str, ...]:
    """Return the accepted texts: the text, the number or the option."""
    truth = sample.truth
    if truth.text is not None:
        return truth.text
    if truth.number is not None:
        whole = float(truth.number).is_integer()
        return (str(int(truth.number)) if whole else str(truth.number),)
    return (str(truth.choice),)


def word_score(reading: str | None, right: str, chance: float = 0.0) -> Score:
    """Score a word that has to be the right one; an empty one counts as unread."""
    return Score(float(reading == right), bool(reading), reading or "", chance)


def letter_scorer(find: Callable[[str, Sample], str | None]) -> Scorer:
    """Make a scorer of a rule that reads a letter, which has to be that of the right option."""
    return lambda answer, sample, _: word_score(
        find(answer, sample), right_letter(sample), 1 / len(option_letters(sample))
    )


def yes_no_scorer(read: Callable[[str], letters.Said | None]) -> Scorer:
    """Make a scorer of a rule that reads yes or no."""
    return lambda answer, sample, _: word_score(
        read(answer), accepted_texts(sample)[0].strip().lower().rstrip(".")
    )


def text_scorer(rule: Callable[[str, tuple[str, ...]], float]) -> Scorer:
    """Make a scorer of a rule that compares an answer with the accepted texts."""
    return lambda answer, sample, frame: Score(float(rule(answer, accepted_texts(sample))))


def number_scorer(read: Callable[[str], float | None]) -> Scorer:
    """Make a scorer of a rule that reads a number, which has to be the true one."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        count = read(answer)
        return Score(float(count == sample.truth.number), count is not None)

    return score


def point_scorer(read: Callable[[str, Sample], places.XY | None]) -> Scorer:
    """Make a scorer of a rule that reads a point, which has to lie in the box."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        assert sample.truth.boxes
        box, point = sample.truth.boxes[0], read(answer, sample)
        hit = point and box.x1 <= point[0] <= box.x2 and box.y1 <= point[1] <= box.y2
        return Score(float(bool(hit)), point is not None)

    return score


def judged_scorer(rule: Callable[[str, Sample], bool | None]) -> Scorer:
    """Make a scorer of a rule that leaves what it cannot read to a judge."""

    def score(answer: str, sample: Sample, frame: Frame) -> Score:
        right = rule(answer, sample)
        return Score(float(bool(right)), right is not None)

    return score


def equal_text(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what a judge is sure to find right: an accepted text to the letter; the rest is unread."""
    right = answer.strip() in [accepted.strip() for accepted in accepted_texts(sample)]
    return Score(float(right), read=right)
