"""The declaration `none`: there is nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.schema import Box, Frame, Truth
from vlmrl.truths.base import Claim, TruthKind
from vlmrl.truths.boxes import Boxes


@dataclass(frozen=True)
class Nothing(TruthKind):
    """There is nothing to find (key `none`): only then does an answer that says so score 1."""

    rank: ClassVar[int] = 0
    key: ClassVar[str] = "none"

    def parse(self, value: object, frame: Frame) -> bool:
        """Return True; False is refused, since a truth without the key says the same."""
        if value is not True:
            raise ValueError(
                f"expected true, got {value!r:.80}; leave the key out where there is something "
                "to find"
            )
        return True

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "Where is the zebra?", Truth(none=True)

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        if truth.none:
            somewhere = Truth(boxes=(Box(0.1, 0.1, 0.3, 0.3),))
            yield Claim("nothing", "[]", Boxes().write(somewhere, frame))
            yield Claim("nothing", "I don't know.", "seven")

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        """Return the region as a box: something, where there is nothing."""
        return Boxes().cover(x1, y1, x2, y2)
