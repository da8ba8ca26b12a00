"""A number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths.base import Readers, TruthKind, check_number


@dataclass(frozen=True)
class Number(TruthKind):
    """A finite number."""

    rank: ClassVar[int] = 94
    form: ClassVar[str] = "a number"
    readers: ClassVar[Readers] = {"number": {}, "regression": {}}

    def parse(self, value: object, frame: Frame) -> float:
        """Return the number; a bool is none."""
        return check_number(value)

    def instruct(self, truth: Truth, space: Space) -> str:
        return "Answer with a number."

    def write(self, truth: Truth, frame: Frame) -> str:
        return f"{truth.number:.12g}"

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "How many cells?", Truth(number=7.0, text=("7",))
        yield "How good is the image, from 1 to 5?", Truth(number=3.4)
        yield "How good is this one, from 1 to 5?", Truth(number=1.9)
        yield "And this one, from 1 to 5?", Truth(number=4.6)

    def mistake(self, truth: Truth) -> Truth:
        number = truth.number or 0.0
        return replace(truth, number=number + max(1.0, abs(number) / 2))

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        return " ".join([*map(str, range(101)), self.write(truth, frame)])
