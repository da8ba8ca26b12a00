"""A fixed order of difficulty."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.data.sampler import Sampler, SamplerState, SourceRows

PART = 2**18
"""Rows that are looked at together."""


@dataclass(frozen=True)
class Curriculum(Sampler):
    """From easy to hard by a column of the rows, once through all rows, and again.

    The rows of all sources are in one order; the weights of the sources do not matter. Rows of equal
    difficulty come at random.

    Used by: Observe-R1.
    """

    difficulty: str
    """Column with the difficulty of each row, a number; `a.b` is one nested in another."""
    descending: bool = False
    """Begin with the highest numbers: a column of pass rates is high where rows are easy."""

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Return options for rows with any column."""
        return {"difficulty": "level"}

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Order the rows."""
        state = SamplerState(tuple(sources), seed)
        values = state.column(self.difficulty)
        order = _order(values, self.descending, seed)
        state.fixed = {"order": order, "difficulty": values}
        return state

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows from draw `number` on."""
        order = state.fixed["order"]
        return (int(order[draw % len(order)]) for draw in itertools.count(number))

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the mean difficulty of the rows."""
        return {"sampler/difficulty": float(state.fixed["difficulty"][rows].mean())}


def _order(values: np.ndarray, descending: bool, seed: int) -> np.ndarray:
    """Return rows [n] int32 by value [n] float32, equal ones at random, NaN last.

    The keys are made in parts and sorted in place: `argsort` would take twice the memory.
    """
    ties = np.random.RandomState(seed).permutation(len(values)).astype(np.int32)
    keys, rows = np.empty(len(values), np.uint64), np.empty_like(ties)
    for begin in range(0, len(values), PART):
        part = slice(begin, begin + PART)
        keys[part] = _sortable(-values[part] if descending else values[part])
        keys[part] = (keys[part] << np.uint64(32)) | ties[part].astype(np.uint64)
        rows[ties[part]] = np.arange(begin, begin + len(ties[part]), dtype=np.int32)
    del ties
    keys.sort()
    keys &= np.uint64(2**32 - 1)
    return rows[keys.view(np.int64)]


def _sortable(values: np.ndarray) -> np.ndarray:
    """Return float32 values as uint32 of the same order, NaN last."""
    bits = np.where(np.isnan(values), np.float32(np.nan), values).view(np.int32)
    # All bits of a negative number are turned, else its sign alone.
    return (bits ^ ((bits >> 31) | np.int32(-(2**31)))).view(np.uint32)
