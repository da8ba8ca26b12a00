"""The options of a question whose truth is a choice."""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.schema import Frame
from vlmrl.truths.base import TruthKind, check_texts


@dataclass(frozen=True)
class Options(TruthKind):
    """The texts of the options in order, A first; they are read with `choice`, never asked for."""

    def parse(self, value: object, frame: Frame) -> tuple[str, ...]:
        return check_texts(value)
