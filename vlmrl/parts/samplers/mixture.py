"""The default: sources by weight, each in a new random order every epoch."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.data.sampler import Sampler, SamplerState
from vlmrl.system.seeds import uniform


@dataclass(frozen=True)
class Mixture(Sampler):
    """Sources at random by their weight, the rows of each once an epoch in a random order.

    Which source draw number n takes is a function of (seed, n), and the order of a source's rows in
    an epoch a function of (seed, source, epoch).
    """

    follows_weights: ClassVar[bool] = True

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows from draw `number` on."""
        own = tuple(source.weight for source in state.sources)
        begins, weights = zip(*(state.weights or [(0, own)]), strict=True)
        bounds = [_bounds(each) for each in weights]
        firsts = state.firsts
        taken = [0] * len(own)
        orders: dict[int, tuple[int, np.ndarray]] = {}

        def source_of(draw: int) -> int:
            now = bounds[bisect.bisect(begins, draw) - 1]
            return bisect.bisect(now, uniform(f"{state.seed} draw {draw}"))

        for earlier in range(number):
            taken[source_of(earlier)] += 1
        for draw in itertools.count(number):
            source = source_of(draw)
            count = state.sources[source].count
            epoch, offset = divmod(taken[source], count)
            if orders.get(source, (-1,))[0] != epoch:
                orders[source] = (epoch, _permutation(count, state.seed, source, epoch))
            taken[source] += 1
            yield firsts[source] + int(orders[source][1][offset])


def _bounds(weights: Sequence[float]) -> list[float]:
    """Return where in [0, 1) each source but the first begins."""
    return [bound / sum(weights) for bound in itertools.accumulate(weights)][:-1]


def _permutation(count: int, seed: int, source: int, epoch: int) -> np.ndarray:
    """Return the order [count] int64 of a source's rows in an epoch.

    `RandomState` because numpy promises never to change its streams; `Generator` may.
    """
    bits = np.random.MT19937(np.random.SeedSequence([seed, source, epoch]))
    return np.random.RandomState(bits).permutation(count)
