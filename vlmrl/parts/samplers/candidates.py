"""Choice among millions of rows in time that does not grow with them: hashes in place of permutations."""

from __future__ import annotations

import numpy as np

from vlmrl.data.sampler import SamplerState
from vlmrl.system.seeds import seed_of

MANY = 2**14
"""Rows up to which all are compared; of more, only candidates are."""
SEED_PURPOSE = 16
"""Part of the seed of every choice; see `strategies.base.BatchDraw.seed`."""


def scatter(numbers: np.ndarray, *parts: int) -> np.ndarray:
    """Return a pseudo-random uint64 for each number [n], a function of it and of `parts` alone.

    Source: splitmix64, Steele et al. 2014, "Fast splittable pseudorandom number generators".
    """
    x = numbers.astype(np.uint64) + np.uint64(seed_of(SEED_PURPOSE, *parts))
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def some_of(total: int, count: int, *parts: int) -> np.ndarray:
    """Return up to `count` different numbers below `total` [n] int64, sorted; all if those are few."""
    if total <= max(count, MANY):
        return np.arange(total, dtype=np.int64)
    return np.unique(scatter(np.arange(count), *parts) % np.uint64(total)).astype(np.int64)


def best(rows: np.ndarray, count: int, *keys: np.ndarray) -> np.ndarray:
    """Return the first `count` rows by ascending keys [n] each; the first key matters most."""
    return rows[np.lexsort(keys[::-1])[:count]]


def chance_keys(rows: np.ndarray, weight: np.ndarray, *parts: int) -> np.ndarray:
    """Return a key for each row [n]; those with the smallest are a draw by weight without replacement.

    Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
    """
    chance = (scatter(rows, *parts) + 0.5) / 2.0**64
    keys: np.ndarray = -np.log(chance) / weight
    return keys


def begin_visits(state: SamplerState) -> None:
    """Begin to count, in place: no row has been visited."""
    state.arrays["visits"] = np.zeros(state.count, np.int32)
    state.scalars["visited"] = 0


def count_visits(state: SamplerState, rows: np.ndarray) -> None:
    """Count visits of rows [n], in place: `visits` of each, and in all the rows `visited` at all."""
    visits = state.arrays["visits"]
    state.scalars["visited"] += len(np.unique(rows[visits[rows] == 0]))
    np.add.at(visits, rows, 1)
