"""A question with options in a row of a data set: as text with letters, truth, and demonstration.

What is an option and which is right is read from what a row states, never guessed.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from vlmrl.answers import text
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Truth

LETTERS = "ABCDEFGHIJ"

_MARKED = re.compile(r"\(?(?P<letter>[A-J])[.):]\s*(?P<option>.+)", re.DOTALL)
_INLINE = re.compile(r"\((?P<letter>[A-J])\)")
_LINES = re.compile(r"^\s*(?P<letter>[A-J])[.):]\s", re.MULTILINE)
_ASKS = re.compile(
    r"(?:Please )?[Aa]nswer with (?:only )?the (?:option'?s? )?letter\b[^.()\n]*\.?\s*$"
)


def lettered(question: object, options: Any, right: Any) -> tuple[str, Truth, Demo]:
    """List options under a question, one a line; `right` is an option's text or its index from 0.

    Raises:
        UserError: no list of 2 to 10 options, or `right` is none of them.
    """
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise UserError(f"expected 2 to {len(LETTERS)} options, got {options!r:.60}")
    options = [str(option).strip() for option in options]
    index = options.index(right.strip()) if str(right).strip() in options else right
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(options):
        raise UserError(f"the answer {right!r:.60} is none of the options")
    letter = LETTERS[index]
    truth = Truth(choice=letter, options=tuple(options))
    return _listed(str(question), options), truth, Demo(text=letter)


def asked(question: str) -> tuple[str, ...]:
    """Find the options of a question that lists them by letters and ends by asking for the letter.

    They stand as `(A) cat (B) dog` or one a line as `A. cat`, at least two, from A on without a gap.
    Empty: this is no such question.
    """
    ending = _ASKS.search(question)
    return inline(question[: ending.start()]) if ending else ()


def inline(listing: str) -> tuple[str, ...]:
    """Find the options that a text lists by letters, see `asked`; empty: it lists none."""
    for mark in (_INLINE, _LINES):
        marks = [*mark.finditer(listing)]
        if len(marks) > 1 and "".join(m["letter"] for m in marks) == LETTERS[: len(marks)]:
            ends = [*(m.start() for m in marks[1:]), len(listing)]
            pieces = [listing[m.end() : end] for m, end in zip(marks, ends, strict=True)]
            options = tuple(piece.strip(" \n;,") for piece in pieces)
            return options if all(options) else ()
    return ()


def options_of(value: object) -> tuple[str, ...]:
    """Read the options of a row: a list of texts, or one text with letters; marks are removed.

    Raises:
        UserError: anything else, or not 2 to 10 of them.
    """
    stated = list(inline(value)) if isinstance(value, str) else value
    if not isinstance(stated, list) or not all(isinstance(option, str) for option in stated):
        raise UserError(f"expected a list of texts, got {value!r:.60}")
    if not 2 <= len(stated) <= len(LETTERS):
        raise UserError(f"expected 2 to {len(LETTERS)} options, got {value!r:.60}")
    plain = _unmarked(stated)
    if not all(plain):
        raise UserError(f"an option is empty: {value!r:.60}")
    return tuple(plain)


def choice_truth(options: tuple[str, ...], answer: str) -> Truth:
    """Which of these options an answer means: by its letter, by its text, or by both.

    Its letter and its text are the accepted texts.

    Raises:
        UserError: it is none of them, may be several, or an option is the letter of another.
    """
    texts = [text.normalised(option) for option in options]
    marks = LETTERS[: len(options)]
    if any(t.upper() in marks and t.upper() != m for t, m in zip(texts, marks, strict=True)):
        raise UserError(f"options that are other options' letters: {', '.join(options)}")
    plain = answer.strip()
    means = {i for i, option in enumerate(options) if option == plain}
    means = means or {i for i, t in enumerate(texts) if t == text.normalised(plain)}
    if len(letter := plain.strip("().:").upper()) == 1 and letter in marks:
        means.add(marks.index(letter))
    both = _MARKED.fullmatch(plain)
    if both and both["letter"] in marks and text.normalised(both["option"]) in texts:
        means |= {marks.index(both["letter"]), texts.index(text.normalised(both["option"]))}
    if not means:
        raise UserError(f"key 'answer': {answer!r:.60} is none of the options {', '.join(options)}")
    if len(means) > 1:
        named = " and ".join(marks[i] for i in sorted(means))
        raise UserError(f"key 'answer': {answer!r:.60} may be each of the options {named}")
    right = means.pop()
    return Truth(choice=marks[right], options=options, text=(marks[right], options[right]))


def shows(question: str, options: Sequence[str], choice: str) -> bool:
    """Return whether a question holds each option, with its letter where the right answer is a letter."""
    plain = _unmarked(options)
    if choice.strip() in options or choice.strip() in plain:
        return all(option in question for option in plain)
    return _lists(question, plain)


def with_shown_options(question: str, options: Sequence[str], choice: str) -> str:
    """Add the options by letters to a question that does not show them; their own marks are removed."""
    return question if shows(question, options, choice) else _listed(question, _unmarked(options))


def _unmarked(options: Sequence[str]) -> list[str]:
    """Return the options without letters before them, where all have theirs."""
    marked = [_MARKED.fullmatch(option.strip()) for option in options]
    letters = "".join(m["letter"] for m in marked if m is not None)
    if len(options) > len(LETTERS) or letters != LETTERS[: len(options)]:
        return [option.strip() for option in options]
    return [m["option"].strip() for m in marked if m is not None]


def with_options(question: str, options: tuple[str, ...]) -> str:
    """Add the options by letters to the question, one a line, unless it lists them already."""
    return question if _lists(question, options) else _listed(question, options)


def _lists(question: str, options: Sequence[str]) -> bool:
    lettered = zip(string.ascii_uppercase, options, strict=False)
    marked = (rf"\(?{letter}[.):]\s*{re.escape(option)}" for letter, option in lettered)
    return all(re.search(mark, question) for mark in marked)


def _listed(question: str, options: Sequence[str]) -> str:
    lettered = zip(string.ascii_uppercase, options, strict=False)
    lines = "\n".join(f"{letter}. {option}" for letter, option in lettered)
    return f"{question.strip()}\n{lines}"
