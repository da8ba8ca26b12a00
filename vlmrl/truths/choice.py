"""The right one of several options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths.base import Readers, TruthKind, check_text
from vlmrl.truths.text import LETTERS


@dataclass(frozen=True)
class Choice(TruthKind):
    """The letter or the text of the right option; the key `options` lists all of them.

    With spans the choice is the answer: those are evidence, for which the template asks.
    """

    rank: ClassVar[int] = 70
    form: ClassVar[str] = "the letter of the right option"
    words: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"choice": {}}

    def parse(self, value: object, frame: Frame) -> str:
        return check_text(value)

    def instruct(self, truth: Truth, space: Space) -> str:
        stated = (truth.choice or "A").strip("() .").upper()
        is_letter = truth.choice not in (truth.options or ()) and len(stated) == 1
        what = "letter" if is_letter and stated in LETTERS else "text"
        return f"Answer with the {what} of the right option."

    def write(self, truth: Truth, frame: Frame) -> str | None:
        return truth.choice

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "Is it day or night?", Truth(choice="night", options=("day", "night"))
        four = Truth(choice="B", options=("cat", "dog", "owl", "ant"))
        yield "Which one? (A) cat (B) dog (C) owl (D) ant", four

    def mistake(self, truth: Truth) -> Truth:
        choice, options = truth.choice or "", truth.options or ()
        if choice in options:
            other = next((option for option in options if option != choice), "none of them")
        else:
            other = next(letter for letter in LETTERS if letter != choice.strip("() .").upper())
        return replace(truth, choice=other)

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        options = truth.options or ()
        if truth.choice in options:
            return " ".join(options)
        every = [f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False)]
        return " ".join(every or LETTERS[:5])
