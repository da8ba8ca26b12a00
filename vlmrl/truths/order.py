"""Names in their right order, e.g. the numbers of shuffled tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.schema import Frame, Space, Truth
from vlmrl.truths.base import Readers, TruthKind, check_names


@dataclass(frozen=True)
class Order(TruthKind):
    """Two or more different names, or whole numbers, in their right order."""

    rank: ClassVar[int] = 120
    readers: ClassVar[Readers] = {"order": {"discount": 0.0}}

    def parse(self, value: object, frame: Frame) -> tuple[str, ...]:
        """Return the names; a whole number is one."""
        names = check_names(value)
        if len(set(names)) < max(2, len(names)):
            raise ValueError(f"expected two or more different names, got {value!r:.80}")
        return names

    def instruct(self, truth: Truth, space: Space) -> str:
        return "Answer with all of them in their right order, separated by commas."

    def write(self, truth: Truth, frame: Frame) -> str:
        return ", ".join(truth.value(self.name) or ())

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "Which clip is first, which next?", Truth(more={self.name: ("3", "1", "4", "2", "5")})
        yield "Who comes in, in which order?", Truth(more={self.name: ("Ann", "Ben")})

    def mistake(self, truth: Truth) -> Truth:
        """Move each name by one place, the last to the front."""
        names = truth.value(self.name) or ()
        return replace(truth, more={**truth.more, self.name: (*names[-1:], *names[:-1])})

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        names = truth.value(self.name) or ()
        return ", ".join([*names, *names[::-1], *names])
