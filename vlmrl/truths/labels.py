"""A set of names that apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths.base import STRANGERS, Readers, TruthKind, check_names


@dataclass(frozen=True)
class Labels(TruthKind):
    """The names that apply, in any order; whole numbers are names, too."""

    rank: ClassVar[int] = 92
    form: ClassVar[str] = "label"
    words: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"labels": {}}

    def parse(self, value: object, frame: Frame) -> tuple[str, ...]:
        return check_names(value)

    def instruct(self, truth: Truth, space: Space) -> str:
        return "Answer with the names that apply, separated by commas."

    def write(self, truth: Truth, frame: Frame) -> str:
        return ", ".join(truth.labels or ())

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "What does the X-ray show?", Truth(labels=("edema", "effusion"))

    def mistake(self, truth: Truth) -> Truth:
        return replace(truth, labels=(STRANGERS[0],))

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        several = (f"finding {i}" for i in range(9))
        return ", ".join([*STRANGERS, *(truth.labels or ()), *several])
