"""Signs in one answer that a loose reader would understand it otherwise than a strict one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vlmrl.answers import literals, text

__all__ = ["Signs", "read_signs"]

_NUMBER = re.compile(r"(?<![\w.])[-+]?[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_ITEM = re.compile(r"[\[({][^\[\](){}]*[\])}]")
_BREAK = re.compile(r"[,;\n]")
MANY_WORDS = 2
"""How many times the words of the right answer make a list of guesses, where it has no numbers."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is odd about an answer, beside the right one as a model should write it.

    `candidates`: it lists more numbers than the right answer has, or more than twice its words where
    that has no number. `fallback`: it is not in the plain form of the right answer, so that whoever
    reads it looks for the answer inside; None where the right answer has no number. `copied`: it is a
    part of the question, of which the right answer is none. `repeated`: it says the same thing twice.

    Example: Signs(candidates=True, fallback=True, copied=False, repeated=False)
    """

    candidates: bool
    fallback: bool | None
    copied: bool
    repeated: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of those that it shows."""
        named = ("candidates", "fallback", "copied", "repeated")
        return tuple(name for name in named if getattr(self, name))


def read_signs(answer: str, right: str, question: str) -> Signs:
    """Compare an answer with the right one as a model should write it; time is linear in their lengths.

    An answer too long for any reader shows only its beginning.
    """
    answer = answer[: literals.MAX_CHARS]
    stated, wanted = _NUMBER.findall(answer), _NUMBER.findall(right)
    if wanted:
        many = len(stated) > len(wanted)
    else:
        many = len(answer.split()) > MANY_WORDS * len(right.split())
    return Signs(
        candidates=many,
        fallback=_shape(answer) != _shape(right) if wanted else None,
        copied=_occurs(answer, question) and not _occurs(right, question),
        repeated=_repeats(answer),
    )


def _shape(answer: str) -> str:
    """Return an answer with every number as 0, a list of like items as its first one, white space gone."""
    shape = "".join(_NUMBER.sub("0", answer).split())
    items = _ITEM.findall(shape)
    return f"[{items[0]}]" if len(items) > 1 and len(set(items)) == 1 else shape


def _occurs(answer: str, question: str) -> bool:
    said = text.normalised(answer)
    return bool(said) and f" {said} " in f" {' '.join(_words(question))} "


def _words(question: str) -> Iterator[str]:
    for word in question.split():
        if said := text.normalised(word):
            yield said


def _repeats(answer: str) -> bool:
    items = [item for item in _ITEM.findall(answer) if _NUMBER.search(item)]
    if len(items) < 2:
        items = [part.strip() for part in _BREAK.split(answer) if part.strip()]
        if _ITEM.search(answer):
            return False  # the numbers of one place may be equal
    return len(set(items)) < len(items)
