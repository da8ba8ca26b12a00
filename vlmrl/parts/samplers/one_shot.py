"""One row, or a few, again and again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlmrl.data.sampler import Sampler, SamplerState, SourceRows
from vlmrl.errors import UserError


@dataclass(frozen=True)
class OneShot(Sampler):
    """The same rows in every batch.

    Source: Wang et al. 2025, "Reinforcement Learning for Reasoning in Large Language Models with One
    Training Example", arXiv 2504.20571.
    """

    rows: tuple[int, ...] = (0,)
    """Numbers of the rows, from 0, through all sources in their order."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows: expected at least one, got none")

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Check that the rows exist."""
        state = SamplerState(tuple(sources), seed)
        for row in self.rows:
            if not 0 <= row < state.count:
                raise UserError(
                    f"sampler 'one_shot': rows: expected numbers from 0 to {state.count - 1}, got {row}"
                )
        return state

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows from draw `number` on."""
        return (self.rows[draw % len(self.rows)] for draw in itertools.count(number))
