"""Controls: the same questions without what a right answer should need, and the best constant answer.

A control changes the samples before a harness's words are put around them, so that a harness asks and
scores them as it does all others. What it draws depends on the row only.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from vlmrl.benchmarking.base import OURS, BenchmarkCard, name_of
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scores import accepted_texts
from vlmrl.benchmarking.scoring import Answer, score_answers
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.schema import Media, Sample

NO_THINK = "no_think"
"""The control that changes no sample: the model is forced to leave its thought out."""
CONSTANTS = ("A", "B", "C", "D", "yes", "no", "0", "1", "2", "3", "[0, 0, 1000, 1000]")
"""Constant answers that are tried besides the commonest truths."""
MAIN = ("official", "strict")
MAX_TRUTHS = 5
"""How many of the commonest truths are tried."""


@dataclass(frozen=True, slots=True)
class BestConstant:
    """The one answer to all rows that pays most by a number, and what it pays."""

    number: str
    answer: str
    value: float


def controlled(source: Source, control: str) -> Source:
    """Return a benchmark's source whose samples a control has changed.

    Raises:
        UserError: there is no such control, or it cannot be made of this benchmark.
    """
    if control not in CONTROLS:
        known = ", ".join(CONTROLS)
        raise UserError(f"vlmrl eval --control: expected one of {known}, got {control!r}")
    card = source.card
    assert isinstance(card, BenchmarkCard)
    made = BenchmarkCard(card.benchmark, card.official.protocol if card.official else OURS)
    made.change = CONTROLS[control](source)
    return replace(source, card=made)


def _text_only(source: Source) -> Callable[[Sample], Sample]:
    if source.sample(0).truth.has_places:
        _refuse(source, "text_only", "its answers are places in an image")
    return lambda sample: replace(
        sample, parts=tuple(part for part in sample.parts if not isinstance(part, Media))
    )


def _shuffled_images(source: Source) -> Callable[[Sample], Sample]:
    """Show another row's media, in one cycle through all rows; rows of the same medium are passed over."""
    count = len(source.rows)
    order = np.random.default_rng(0).permutation(count)
    position = np.argsort(order)

    def change(sample: Sample) -> Sample:
        at = int(position[int(sample.meta[INDEX])])
        for step in range(1, count):
            other = source.sample(int(order[(at + step) % count]))
            if other.media and other.media != sample.media:
                media = itertools.cycle(other.media)  # fewer of them are shown again
                parts = [next(media) if isinstance(p, Media) else p for p in sample.parts]
                return replace(sample, parts=tuple(parts))
        raise UserError("control shuffled_images: expected rows with different media, got only one")

    return change


def _shuffled_options(source: Source) -> Callable[[Sample], Sample]:
    """Put the options in another order; the right letter moves with its option."""
    card = source.card
    assert isinstance(card, BenchmarkCard)
    if not source.sample(0).truth.options:
        _refuse(source, "shuffled_options", "its options are not apart from its question")
    if card.official is not None and "{options}" not in card.official.ask:
        _refuse(source, "shuffled_options", "the harness's prompt takes them from elsewhere")

    def change(sample: Sample) -> Sample:
        options, choice = sample.truth.options or (), str(sample.truth.choice)
        rng = np.random.default_rng([1, int(sample.meta[INDEX])])
        order = rng.permutation(len(options)).tolist()
        letters = string.ascii_uppercase[: len(options)]
        if choice in letters:
            choice = letters[order.index(letters.index(choice))]
        shuffled = tuple(options[number] for number in order)
        return replace(sample, truth=replace(sample.truth, options=shuffled, choice=choice))

    return change


def _refuse(source: Source, control: str, reason: str) -> None:
    assert isinstance(source.card, BenchmarkCard)
    raise UserError(f"benchmark {name_of(source.card.benchmark)!r} has no {control}: {reason}")


CONTROLS: Mapping[str, Callable[[Source], Callable[[Sample], Sample]]] = {
    "text_only": _text_only,
    "shuffled_images": _shuffled_images,
    "shuffled_options": _shuffled_options,
    NO_THINK: lambda source: lambda sample: sample,
}
"""By name, what makes of a source the change of its samples."""


def best_constant(source: Source, protocol: str, frame: Mapping[str, object]) -> list[BestConstant]:
    """Return for each number of a benchmark the constant answer that pays most.

    The commonest truths are tried, letters, yes and no, small counts and the whole image. `frame` is
    that of the coordinates of an answer.
    """
    card = source.card
    assert isinstance(card, BenchmarkCard)
    whole = replace(source, template="none")
    truths: Counter[str] = Counter()
    for index in range(len(source.rows)):
        sample = source.sample(index)
        if not sample.truth.has_places:
            truths[accepted_texts(sample)[0]] += 1
    tried = dict.fromkeys([*(text for text, _ in truths.most_common(MAX_TRUTHS)), *CONSTANTS])
    best: dict[str, BestConstant] = {}
    for answer in tried:
        answers = [Answer(i, answer, 1, "stop", frame) for i in range(len(source.rows))]
        figures = score_answers(card.benchmark, whole, protocol, answers).figures
        for number in (name for name in figures if name in MAIN):
            value = figures[number].value
            if number not in best or value > best[number].value:
                best[number] = BestConstant(number, answer, value)
    return list(best.values())
