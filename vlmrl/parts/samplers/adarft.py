"""Rows of a difficulty that follows the reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vlmrl.data.sampler import AdaptiveSampler, SamplerState, SeenRewards, SourceRows
from vlmrl.parts.samplers.candidates import MANY, begin_visits, best, count_visits, scatter


@dataclass(frozen=True)
class Adarft(AdaptiveSampler):
    """The rows whose difficulty is nearest to a target, which rises while the reward is above a goal.

    After each batch with mean reward R the target moves by step_size * tanh(sensitivity * (R - goal)).
    Of rows equally near, those seen least come first.

    Source: Shi et al. 2025, "Efficient Reinforcement Finetuning via Adaptive Curriculum Learning",
    arXiv 2504.05520, with its defaults; difficulties are from 0 to 100 there.

    Differs: rows in flight are not drawn again while there are others; the reward comes
    `data.sampler.lag` batches late, so that a smaller step_size keeps the target from swinging.
    """

    curves: ClassVar[Mapping[str, str]] = {
        "sampler/target": "Difficulty that the sampler `adarft` drew rows nearest to.",
    }

    difficulty: str
    """Column with the difficulty of each row, a number; `a.b` is one nested in another."""
    descending: bool = False
    """The column is high where rows are easy, as a pass rate is: a row's difficulty is then what it
    lacks of `highest`, counted from `lowest`."""
    target: float = 0.0
    """Target of the first batches."""
    step_size: float = 50.0
    """Most that the target moves after a batch."""
    sensitivity: float = 2.0
    """How soon it moves as much as that."""
    goal: float = 0.5
    """Mean reward that leaves the target where it is."""
    lowest: float = 0.0
    """Lowest target."""
    highest: float = 100.0
    """Highest target."""

    def __post_init__(self) -> None:
        if not self.lowest <= self.target <= self.highest:
            raise ValueError(
                f"target: expected a number from lowest {self.lowest:g} to highest "
                f"{self.highest:g}, got {self.target:g}"
            )

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Return options for rows with any column."""
        return {"difficulty": "level"}

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Read the difficulties and sort them."""
        state = SamplerState(tuple(sources), seed)
        values = state.column(self.difficulty)
        if self.descending:
            values = np.float32(self.lowest + self.highest) - values
        order = np.argsort(values, kind="stable").astype(np.int32)
        state.fixed = {"difficulty": values, "order": order, "ranked": values[order]}
        state.scalars["target"] = self.target
        begin_visits(state)
        return state

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Return the rows nearest to the target."""
        rows = _near(state, batch, count + len(avoid))
        distance = np.abs(state.fixed["difficulty"][rows] - state.scalars["target"])
        visits, ties = state.arrays["visits"][rows], scatter(rows, state.seed, batch)
        return best(rows, count, np.isin(rows, avoid), distance, visits, ties)

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Move the target."""
        count_visits(state, seen.rows)
        if len(seen.rewards):
            excess = self.sensitivity * (float(seen.rewards.mean()) - self.goal)
            target = state.scalars["target"] + self.step_size * math.tanh(excess)
            state.scalars["target"] = min(max(target, self.lowest), self.highest)

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the target, the mean difficulty of the rows, and the share of rows seen so far."""
        return {
            "sampler/target": state.scalars["target"],
            "sampler/difficulty": float(state.fixed["difficulty"][rows].mean()),
            "sampler/visited": state.scalars["visited"] / state.count,
        }


def _near(state: SamplerState, batch: int, reach: int) -> np.ndarray:
    """Return rows [n] int64 with the `reach` nearest to the target among them; all if those are few.

    Many more may be as near as the last of these: some of them are drawn at random.
    """
    ranked, order = state.fixed["ranked"], state.fixed["order"]
    if len(order) <= MANY:
        return np.arange(len(order), dtype=np.int64)
    target, reach = np.float32(state.scalars["target"]), min(reach, len(order))
    at = int(np.searchsorted(ranked, target))
    low, high = max(0, at - reach), min(len(order), at + reach)
    radius = np.partition(np.abs(ranked[low:high] - target), reach - 1)[reach - 1]
    begin = int(np.searchsorted(ranked, np.nextafter(target - radius, -np.inf, dtype=np.float32)))
    end = int(np.searchsorted(ranked, np.nextafter(target + radius, np.inf, dtype=np.float32)))
    more = scatter(np.arange(MANY), state.seed, batch, 1) % np.uint64(max(1, end - begin))
    places = [np.arange(low, high), begin + more.astype(np.int64)]
    return np.unique(order[np.concatenate(places)]).astype(np.int64)
