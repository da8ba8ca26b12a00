"""Rows in stages of a column, and hard ones of the stages before."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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
LEAST = 0.05
"""Mean reward as which a row counts whose rewards are lower, so that its difficulty has a bound."""


@dataclass(frozen=True)
class Retrospective(AdaptiveSampler):
    """Each stage has the rows above the bound of the one before, and draws hard ones of earlier stages again.

    The difficulty of a row is 1 / its mean reward so far, cut to [0.05, 1]; a row of an earlier stage that
    was never seen has 1. Rows of the stage itself come in turn, those seen least first.

    Source: Wan et al. 2025, "QwenLong-L1", arXiv 2505.17667, section 3, difficulty-aware retrospective
    sampling; its code of it is not published.

    Differs: rows of earlier stages are drawn anew for each batch, there once for the stage; their share is
    yours.
    """

    curves: ClassVar[Mapping[str, str]] = {
        "sampler/stage": "Stage of the sampler `retrospective`, from 0.",
        "sampler/earlier": "Share of the rows drawn that are of earlier stages of `retrospective`.",
    }

    column: str
    """Column of each row by which stages are told apart, a number; `a.b` is one nested in another."""
    bounds: tuple[float, ...]
    """Highest number of each stage but the last, ascending."""
    begins: tuple[int, ...]
    """Batches, from 0, with which each stage but the first begins; with dynamic sampling a step draws
    several."""
    share: float = 0.25
    """Share of a batch that is of earlier stages, in [0, 1)."""

    def __post_init__(self) -> None:
        both = (self.bounds, (0, *self.begins))
        ascending = all(a < b for each in both for a, b in itertools.pairwise(each))
        if not self.bounds or len(self.bounds) != len(self.begins) or not ascending:
            raise ValueError(
                "bounds, begins: expected as many of both, ascending, begins from 1, got "
                f"{list(self.bounds)} and {list(self.begins)}"
            )
        if not 0 <= self.share < 1:
            raise ValueError(f"share: expected a number in [0, 1), got {self.share:g}")

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Return options for rows with any column."""
        return {"column": "level", "bounds": [30, 60], "begins": [4, 9]}

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Read the column; nothing has been seen."""
        state = SamplerState(tuple(sources), seed)
        stages = np.searchsorted(self.bounds, state.column(self.column), side="left")
        state.fixed["stage"] = stages.astype(np.int16)
        state.arrays["reward"] = np.ones(state.count, np.float32)
        state.scalars["batches"] = 0
        begin_visits(state)
        return state

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Return rows of the stage and hard ones of earlier stages, evenly, then those of later ones."""
        rows = some_of(state.count, CANDIDATES * (count + len(avoid)), state.seed, batch, 1)
        ties, visits = scatter(rows, state.seed, batch, 2), state.arrays["visits"][rows]
        hard = 1 / np.clip(state.arrays["reward"][rows], LEAST, 1)
        keys = chance_keys(rows, hard, state.seed, batch)
        late = np.isin(rows, avoid)
        ahead = state.fixed["stage"][rows] - self._stage(batch)
        now, past = (ahead == 0) & ~late, (ahead < 0) & ~late
        own = deque(best(rows[now], count, visits[now], ties[now]))
        earlier = deque(best(rows[past], count, keys[past]))
        chosen = []
        for number in range(min(count, len(own) + len(earlier))):
            due = int((number + 1) * self.share) > int(number * self.share)
            chosen.append((earlier if earlier and (due or not own) else own).popleft())
        left = ~np.isin(rows, chosen)
        rest = best(rows[left], count - len(chosen), late[left], ahead[left], ties[left])
        return np.concatenate([np.array(chosen, np.int64), rest])

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Take the rewards into the rows' means."""
        reward, visits = state.arrays["reward"], state.arrays["visits"]
        count_visits(state, seen.rows)
        reward[seen.rows] += (seen.rewards - reward[seen.rows]) / visits[seen.rows]
        state.scalars["batches"] += 1

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the stage, the share of the rows that are of earlier ones, and that of rows seen so far."""
        stage = self._stage(int(state.scalars["batches"]))
        return {
            "sampler/stage": float(stage),
            "sampler/earlier": float((state.fixed["stage"][rows] < stage).mean()),
            "sampler/visited": state.scalars["visited"] / state.count,
        }

    def _stage(self, batch: int) -> int:
        return int(np.searchsorted(self.begins, batch, side="right"))
