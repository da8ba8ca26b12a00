"""Accepted texts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Frame, Truth
from vlmrl.truths.base import STRANGERS, Claim, Readers, TruthKind, check_texts

OPPOSITES = {"yes": "no", "no": "yes"}
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ([A-Za-z]{1,9})")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Text(TruthKind):
    """Accepted texts, one or a list of them; the best match counts."""

    rank: ClassVar[int] = 90
    words: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"exact": {}, "ocr": {}, "text": {}}

    def parse(self, value: object, frame: Frame) -> tuple[str, ...]:
        return check_texts([value] if isinstance(value, str) else value)

    def write(self, truth: Truth, frame: Frame) -> str | None:
        return truth.text[0] if truth.text else None

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "What does the sign say?", Truth(text=("Kingsland Road Market 1847",))
        breed = ("golden retriever",)
        yield "What breed is it?", Truth(text=breed, labels=breed)
        yield "Is the door open?", Truth(text=("yes",))
        yield "How long is it?", Truth(text=("5 cm",))

    def mistake(self, truth: Truth) -> Truth:
        return replace(truth, text=tuple(map(_misread, truth.text or ())))

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        """Yield the text; a number with a unit is a "quantity", wrong by 3."""
        quantity = _QUANTITY.fullmatch(truth.text[0]) if truth.text else None
        if truth.text and quantity:
            wrong = f"{float(quantity[1]) + 3:g} {quantity[2]}"
            yield Claim("quantity", truth.text[0], wrong)
        else:
            yield from super().claim(truth, frame)

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        return " ".join([*STRANGERS, "yes no true false", *(truth.text or ()), *LETTERS])


def _misread(text: str) -> str:
    if text in OPPOSITES:
        return OPPOSITES[text]
    other = codecs.encode(text, "rot13").translate(str.maketrans("0123456789", "1234567890"))
    return "".join(b if i % 2 == 0 else a for i, (a, b) in enumerate(zip(text, other, strict=True)))
