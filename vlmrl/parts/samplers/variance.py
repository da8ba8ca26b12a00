"""Rows whose rewards vary are drawn more, beside rows drawn alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.data.sampler import AdaptiveSampler, SamplerState, SeenRewards, SourceRows
from vlmrl.parts.samplers.candidates import (
    begin_visits,
    best,
    chance_keys,
    count_visits,
    scatter,
    some_of,
)

CANDIDATES = 64
"""Rows among which one is drawn, where there are more."""


@dataclass(frozen=True)
class Variance(AdaptiveSampler):
    """A share of each batch by a score of the row, the rest alike.

    The score is `variance` * p (1 - p) + `diversity` * d: p is the row's mean reward when it was last seen,
    cut to [0, 1], and d the share of different runs of 3 tokens among those of its completions. A row that
    was never seen has p = 1/2 and d = 1.

    Source: Leng et al. 2025, "MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open
    Resources", arXiv 2509.21268, section 3, and its code (curriculum/samplers), whose config has a
    share of 0.5 and no diversity.

    Differs: a score is refreshed whenever its row is trained on, there by rollouts of all rows every few
    steps; no row comes twice in a batch, and rows in flight are not drawn again while there are others.
    """

    curves: ClassVar[Mapping[str, str]] = {
        "sampler/score": "Mean score of the rows drawn, as the sampler `variance` knew them.",
    }

    share: float = 0.5
    """Share of a batch that is drawn by score, in [0, 1]."""
    variance: float = 1.0
    """Weight of p (1 - p)."""
    diversity: float = 0.0
    """Weight of d."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: expected a number in [0, 1], got {self.share:g}")
        if min(self.variance, self.diversity) < 0 or not self.variance + self.diversity:
            raise ValueError(
                "variance, diversity: expected numbers from 0 of which one is above, got "
                f"{self.variance:g} and {self.diversity:g}"
            )

    @property
    def reads_completions(self) -> bool:
        """Return whether the diversity of completions counts."""
        return self.diversity > 0

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Begin with the highest score for all rows."""
        state = SamplerState(tuple(sources), seed)
        highest = self.variance / 4 + self.diversity
        state.arrays["score"] = np.full(state.count, highest, np.float32)
        begin_visits(state)
        return state

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Draw rows by score, without replacement, and rows alike among them, evenly."""
        wanted = CANDIDATES * (count + len(avoid))
        rows = some_of(state.count, wanted, state.seed, batch, 1)
        score = np.maximum(state.arrays["score"][rows], 1e-9)
        keys = chance_keys(rows, score, state.seed, batch)
        late, ties = np.isin(rows, avoid), scatter(rows, state.seed, batch, 2)
        by_score = iter(best(rows, len(rows), late, keys).tolist())
        alike = iter(best(rows, len(rows), late, ties).tolist())
        chosen: dict[int, None] = {}
        for number in range(min(count, len(rows))):
            scored = int((number + 1) * self.share) > int(number * self.share)
            chosen[_next(by_score if scored else alike, chosen)] = None
        order = np.fromiter(chosen, np.int64, len(chosen))
        waiting = np.isin(order, avoid)
        return np.concatenate([order[~waiting], order[waiting]])

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Give the rows the score of what was just written."""
        rate = np.clip(seen.rewards, 0, 1)
        diverse = 0.0 if seen.diversity is None else seen.diversity
        state.arrays["score"][seen.rows] = (
            self.variance * rate * (1 - rate) + self.diversity * diverse
        )
        count_visits(state, seen.rows)

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the mean score of the rows, and the share of rows seen so far."""
        return {
            "sampler/score": float(state.arrays["score"][rows].mean()),
            "sampler/visited": state.scalars["visited"] / state.count,
        }


def _next(rows: Iterator[int], chosen: Mapping[int, None]) -> int:
    """Return the first of the rows that is not chosen yet."""
    return next(row for row in rows if row not in chosen)
