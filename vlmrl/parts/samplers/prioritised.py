"""Rows that fail more are drawn more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.data.sampler import AdaptiveSampler, SamplerState, SeenRewards, SourceRows
from vlmrl.parts.samplers.candidates import begin_visits, best, chance_keys, count_visits, some_of

CANDIDATES = 64
"""Rows among which one is drawn, where there are more."""


@dataclass(frozen=True)
class Prioritised(AdaptiveSampler):
    """Rows at random, each with a weight of one minus its success rate.

    The success rate of a row is the mean of its rewards, each cut to [0, 1]; a row that was never seen
    has 0.

    Source: Kimi team 2025, "Kimi k1.5", arXiv 2501.12599, section 2.3.3.

    Differs: a least weight, so that a solved row is seen again unless `drop_at` drops it; no row comes
    twice in a batch, and rows in flight are not drawn again while there are others.
    """

    curves: ClassVar[Mapping[str, str]] = {
        "sampler/success": "Mean success rate of the rows drawn, as the sampler `prioritised` knew them.",
        "sampler/dropped": "Share of all rows that `prioritised` has dropped as solved (`drop_at`).",
    }

    least_weight: float = 0.05
    """Weight of a row that always succeeds, in (0, 1]; 1: all rows are drawn alike."""
    drop_at: float | None = None
    """Success rate at which a row is not drawn again, unless too few others are left for a batch (ScaleRL,
    arXiv 2510.13786: 0.9). null: none is dropped."""

    def __post_init__(self) -> None:
        if not 0 < self.least_weight <= 1:
            raise ValueError(
                f"least_weight: expected a number in (0, 1], got {self.least_weight:g}"
            )
        if self.drop_at is not None and not 0 < self.drop_at <= 1:
            raise ValueError(f"drop_at: expected a number in (0, 1], got {self.drop_at:g}")

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Begin with all success rates at 0."""
        state = SamplerState(tuple(sources), seed)
        state.arrays["success"] = np.zeros(state.count, np.float32)
        begin_visits(state)
        return state

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Draw rows by weight, without replacement."""
        wanted = CANDIDATES * (count + len(avoid))
        rows = some_of(state.count, wanted, state.seed, batch, 1)
        weight = np.maximum(self.least_weight, 1 - state.arrays["success"][rows])
        dropped = np.zeros(len(rows), bool)
        if self.drop_at is not None:
            dropped = state.arrays["success"][rows] >= np.float32(self.drop_at)
        return best(
            rows, count, np.isin(rows, avoid), dropped, chance_keys(rows, weight, state.seed, batch)
        )

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Take the rewards into the success rates."""
        success, visits = state.arrays["success"], state.arrays["visits"]
        for row, reward in zip(seen.rows, np.clip(seen.rewards, 0, 1), strict=True):
            count_visits(state, np.array([row]))
            success[row] += (reward - success[row]) / visits[row]

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the mean success rate of the rows, and the share of rows seen so far."""
        solved: dict[str, float] = {}
        if self.drop_at is not None:
            share = float((state.arrays["success"] >= np.float32(self.drop_at)).mean())
            solved = {"sampler/dropped": share}
        return {
            **solved,
            "sampler/success": float(state.arrays["success"][rows].mean()),
            "sampler/visited": state.scalars["visited"] / state.count,
        }
