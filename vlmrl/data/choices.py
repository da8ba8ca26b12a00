"""A question with options in a row of a data set: as text with letters, truth, and demonstration."""

from __future__ import annotations

from typing import Any

from vlmrl.errors import UserError
from vlmrl.schema import Demo, Truth

LETTERS = "ABCDEFGHIJ"


def lettered(question: Any, options: Any, right: Any) -> tuple[str, Truth, Demo]:
    """The question with its options, one a line; `right` is an option's text or its index from 0.

    Raises:
        UserError: no list of 2 to 10 options, or `right` is none of them.
    """
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise UserError(f"2 to {len(LETTERS)} options are wanted, found {options!r:.60}")
    options = [str(option).strip() for option in options]
    index = options.index(right.strip()) if str(right).strip() in options else right
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(options):
        raise UserError(f"the answer {right!r:.60} is none of the options")
    listed = "\n".join(f"{mark}. {o}" for mark, o in zip(LETTERS, options, strict=False))
    letter = LETTERS[index]
    truth = Truth(choice=letter, options=tuple(options))
    return f"{str(question).strip()}\n{listed}", truth, Demo(text=letter)
