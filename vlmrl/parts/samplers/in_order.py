"""Rows in the order of the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from vlmrl.data.sampler import Sampler, SamplerState


@dataclass(frozen=True)
class InOrder(Sampler):
    """The rows of the first source in their order, then those of the next, and from the start again.

    The weights of the sources do not matter.
    """

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows from draw `number` on."""
        return (draw % state.count for draw in itertools.count(number))
