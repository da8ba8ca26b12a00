"""The draws of a run: a sampler's own, or for one that learns, those of the next batches.

Invariant: batch b is chosen exactly when the rewards of batch b - lag have been learned, so that
neither worker processes nor ranks change a draw. A plan holds `SPARE` times a batch's rows: the rest
replaces bad ones.
"""

from __future__ import annotations

import bisect
import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlmrl.errors import UserError
from vlmrl.samplers.base import AdaptiveSampler, Sampler, SeenRewards, SourceRows
from vlmrl.schema import Prompt
from vlmrl.system.seeds import seed_of

__all__ = ["DrawPlan", "DrawnRow", "places"]

SPARE = 2
"""Rows that are chosen for a batch, as a factor of its size."""
SEED_PURPOSE = 14
"""Part of the seed of rows that are drawn when all those chosen for a batch were bad."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """Row `row` of source number `source`."""

    source: int
    row: int


def places(prompts: Iterable[Prompt]) -> list[DrawnRow]:
    """Return the draws that prompts were made of, without those that are of no row."""
    return [DrawnRow(*prompt.place) for prompt in prompts if prompt.place is not None]


def _empty(source: SourceRows) -> SourceRows:
    """Return a source without rows, for one of weight 0."""
    return replace(source, count=0, column=lambda _: np.empty(0, np.float32))


class DrawPlan:
    """Which rows come next, for batches of `size`; `lag` batches lie between a choice and its rewards."""

    def __init__(
        self, sampler: Sampler, sources: Sequence[SourceRows], seed: int, size: int, lag: int
    ) -> None:
        self.sampler, self._size, self._lag, self._seed = sampler, size, lag, seed
        if not sampler.follows_weights:  # such weights do not change
            sources = [source if source.weight > 0 else _empty(source) for source in sources]
        self._state = sampler.begin(sources, seed)
        self._firsts = self._state.firsts
        self._learned = 0
        self._chosen: dict[int, np.ndarray] = {}
        self._new_bad: dict[int, np.ndarray] = {}
        self._bad = np.empty(0, np.int64)
        self._queue: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        if self.adapts:
            self._choose()

    @property
    def adapts(self) -> bool:
        """Return whether the sampler learns from rewards, so that a batch has draws of its own."""
        return isinstance(self.sampler, AdaptiveSampler)

    def place(self, number: int) -> DrawnRow:
        """Return the source and the row of a row's number."""
        source = bisect.bisect_right(self._firsts, number) - 1
        return DrawnRow(source, number - self._firsts[source])

    # -------------------------------------------------------------------------------------- draws

    @property
    def weights(self) -> list[list[Any]]:
        """The weights of the sources from a draw on, as JSON values; empty where they do not change."""
        return [[number, list(weights)] for number, weights in self._state.weights]

    @weights.setter
    def weights(self, changes: Sequence[Sequence[Any]]) -> None:
        # A new list: a thread may still draw by the old one.
        self._state.weights = [(number, tuple(weights)) for number, weights in changes]

    def reweigh(self, number: int, weights: Sequence[float]) -> bool:
        """Weigh the sources like this from draw `number` on; return whether that changes any draw.

        Draws before `number` must not be asked for again.
        """
        if self.weights and self.weights[-1][1] == list(weights):
            return False
        self.weights = [*self.weights, [number, weights]]
        return True

    def stream(self, number: int, wait: bool) -> Iterator[int]:
        """Yield the rows of draw `number` and all after it, without those that replace bad ones.

        Of an adaptive sampler's batch they are `size`; `wait` for those that are not chosen yet.
        """
        if not self.adapts:
            return self.sampler.draws(self._state, number)
        self._queue = queue.SimpleQueue()
        for batch in range(number // self._size, self._learned + self._lag):
            self._queue.put(self._chosen[batch])
        return self._from(self._queue, wait)

    def end(self) -> None:
        """End a stream that waits."""
        self._queue.put(None)

    def spares(self, batch: int) -> Iterator[int]:
        """Yield the rows that replace the bad ones of a batch of an adaptive sampler, without end."""
        yield from self._chosen[batch][self._size :].tolist()
        random = np.random.RandomState(seed_of(self._seed, SEED_PURPOSE, batch) % 2**32)
        while True:
            yield int(random.randint(self._state.count))

    def _from(self, chosen: queue.SimpleQueue[np.ndarray | None], wait: bool) -> Iterator[int]:
        while (rows := chosen.get(block=wait)) is not None:
            yield from rows[: self._size].tolist()

    def _choose(self) -> None:
        """Choose the rows of every batch that may be chosen by now."""
        assert isinstance(self.sampler, AdaptiveSampler)
        wanted = SPARE * self._size
        for batch in range(self._learned + len(self._chosen), self._learned + self._lag):
            flying = [rows[: self._size] for rows in self._chosen.values()]
            avoid = np.concatenate([self._bad, *flying])
            rows = self.sampler.choose(self._state, batch, wanted, avoid)
            self._chosen[batch] = np.resize(rows, wanted)  # repeats them where there are too few
            self._queue.put(self._chosen[batch])

    # ------------------------------------------------------------------------------------- rewards

    def note(self, batch: int, tried: int, good: Sequence[DrawnRow]) -> None:
        """Note which of the first `tried` rows chosen for a batch became its prompts; others are bad."""
        self._new_bad[batch] = np.setdiff1d(self._chosen[batch][:tried], self._numbers(good))

    def learn(
        self, draws: Sequence[DrawnRow], rewards: Sequence[float | None]
    ) -> Mapping[str, float]:
        """Take in the mean reward of each row of the next batch (None: it has none); return its curves."""
        known = [source.count > 0 for source in self._state.sources]
        told_of = [(d, r) for d, r in zip(draws, rewards, strict=True) if known[d.source]]
        draws, rewards = [draw for draw, _ in told_of], [reward for _, reward in told_of]
        numbers = self._numbers(draws)
        metrics = self.sampler.metrics(self._state, numbers)
        if isinstance(self.sampler, AdaptiveSampler):
            told = [i for i, reward in enumerate(rewards) if reward is not None]
            means = np.array([rewards[i] for i in told], np.float64)
            self.sampler.learn(self._state, SeenRewards(numbers[told], means))
            del self._chosen[self._learned]
            self._bad = np.union1d(self._bad, self._new_bad.pop(self._learned))
            self._learned += 1
            self._choose()
        return metrics

    def _numbers(self, draws: Sequence[DrawnRow]) -> np.ndarray:
        return np.array([self._firsts[draw.source] + draw.row for draw in draws], np.int64)

    # ---------------------------------------------------------------------------------- checkpoint

    @property
    def scalars(self) -> dict[str, Any]:
        """The small part of what was learned, as JSON values; empty if the sampler does not learn."""
        return {"learned": self._learned, **self._state.scalars} if self.adapts else {}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What was learned of each row, `chosen` [lag, SPARE * size] and `bad` rows; empty likewise."""
        if not self.adapts:
            return {}
        chosen = np.stack(list(self._chosen.values()))
        return {**self._state.arrays, "chosen": chosen, "bad": self._bad}

    def restore(self, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on where `scalars` and `arrays` were taken.

        Raises:
            UserError: they are not those of this sampler with this size and lag.
        """
        now = {name: array.shape for name, array in self.arrays.items() if name != "bad"}
        was = {name: array.shape for name, array in arrays.items() if name != "bad"}
        if now != was or self.scalars.keys() != scalars.keys():
            raise UserError(
                f"resume: expected the state of sampler {type(self.sampler).__name__} with "
                f"data.sampler.lag {self._lag}: arrays {now}, got {was}"
            )
        if not self.adapts:
            return
        self._learned = int(scalars["learned"])
        self._state.scalars = {k: v for k, v in scalars.items() if k != "learned"}
        self._state.arrays = {k: v for k, v in arrays.items() if k not in ("chosen", "bad")}
        self._chosen = dict(enumerate(arrays["chosen"], self._learned))
        self._bad, self._new_bad = arrays["bad"], {}
