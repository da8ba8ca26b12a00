"""Rows as difficult as the policy is able."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.data.sampler import AdaptiveSampler, SamplerState, SeenRewards, SourceRows
from vlmrl.parts.samplers.candidates import MANY, begin_visits, best, count_visits, scatter, some_of


@dataclass(frozen=True)
class Cdas(AdaptiveSampler):
    """Half of each batch from just below the policy's competence C, half from just above.

    The difficulty D of a row and C come from rewards alone: the expected pass rate is sigmoid(C - D),
    and D is the mean of how far pass rates fell short of it. The pass rate of a row in a batch is its
    mean reward, cut to [0, 1]. Of rows equally near, those seen least come first.

    Source: Kong et al. 2025, "Rethinking the Sampling Criteria in Reinforcement Learning for LLM
    Reasoning: A Competence-Difficulty Alignment Perspective", arXiv 2505.17652, and its code, where
    the mean counts the first difficulty, 0, as a visit.

    Differs: ties are broken at random; rows in flight are not drawn again while there are others.
    """

    curves: ClassVar[Mapping[str, str]] = {
        "sampler/competence": "Competence of the policy, on the scale of difficulties of the sampler `cdas`.",
    }

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Begin with all difficulties and the competence at 0."""
        state = SamplerState(tuple(sources), seed)
        state.arrays["difficulty"] = np.zeros(state.count, np.float32)
        state.scalars["competence"] = 0.0
        begin_visits(state)
        state.fixed = {"seen": np.empty(0, np.int32)}
        return state

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Return the nearest rows below and above the competence, in turn."""
        rows = _candidates(state, batch, count + len(avoid))
        gap = state.scalars["competence"] - state.arrays["difficulty"][rows]
        visits, ties = state.arrays["visits"][rows], scatter(rows, state.seed, batch)
        late = np.isin(rows, avoid)
        parts = []
        for among in (~late, late):
            sides = [among & (gap >= 0), among & (gap < 0)]
            keys = [np.abs(gap), visits, ties]
            below, above = (best(rows[s], count, *(key[s] for key in keys)) for s in sides)
            parts.append(_in_turn(below, above))
        return np.concatenate(parts)[:count]

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Move the difficulties of the rows, and the competence against them."""
        competence, moved = state.scalars["competence"], 0.0
        _add_seen(state, seen.rows)
        difficulty, visits = state.arrays["difficulty"], state.arrays["visits"]
        for row, reward in zip(seen.rows, seen.rewards, strict=True):
            count_visits(state, np.array([row]))
            was, times = float(difficulty[row]), int(visits[row]) + 1
            short = 1 / (1 + math.exp(was - competence)) - min(max(float(reward), 0.0), 1.0)
            difficulty[row] = was + (short - was) / times
            moved += float(difficulty[row]) - was
        state.scalars["competence"] = competence - moved / state.count

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return the competence, the mean difficulty of the rows, and the share of rows seen so far."""
        return {
            "sampler/competence": state.scalars["competence"],
            "sampler/difficulty": float(state.arrays["difficulty"][rows].mean()),
            "sampler/visited": state.scalars["visited"] / state.count,
        }


def _candidates(state: SamplerState, batch: int, reach: int) -> np.ndarray:
    """Return rows [n] int64, sorted: all if they are few, else the nearest seen ones and some unseen.

    All unseen rows have difficulty 0, so that any of them will do.
    """
    if state.count <= MANY:
        return np.arange(state.count, dtype=np.int64)
    visits, parts = state.arrays["visits"], (state.seed, batch)
    unseen = some_of(state.count, 4 * reach, *parts, 1)
    unseen = unseen[visits[unseen] == 0]
    if len(unseen) < reach:
        unseen = np.flatnonzero(visits == 0)
        unseen = unseen[some_of(len(unseen), 4 * reach, *parts, 2)]
    seen = _seen(state)
    gap = state.scalars["competence"] - state.arrays["difficulty"][seen]
    sides = [seen[gap >= 0], seen[gap < 0]]
    gaps = [np.abs(gap[gap >= 0]), np.abs(gap[gap < 0])]
    near = [_nearest(r, g, reach, *parts) for r, g in zip(sides, gaps, strict=True)]
    return np.unique(np.concatenate([unseen, *near]))


def _seen(state: SamplerState) -> np.ndarray:
    """Return the rows [n] int32 that have been seen, sorted; looked for anew after a resume."""
    if len(state.fixed["seen"]) != state.scalars["visited"]:
        state.fixed["seen"] = np.flatnonzero(state.arrays["visits"]).astype(np.int32)
    return state.fixed["seen"]


def _add_seen(state: SamplerState, rows: np.ndarray) -> None:
    """Add to the rows that have been seen, in place; their visits are not counted yet."""
    new = np.unique(rows[state.arrays["visits"][rows] == 0]).astype(np.int32)
    seen = _seen(state)
    state.fixed["seen"] = np.insert(seen, np.searchsorted(seen, new), new)


def _nearest(rows: np.ndarray, gaps: np.ndarray, reach: int, *parts: int) -> np.ndarray:
    """Return the `reach` rows with the smallest gaps, and some of those that are as near as the last."""
    if len(rows) <= reach:
        return rows
    radius = np.partition(gaps, reach - 1)[reach - 1]
    ties = rows[gaps == radius]
    return np.concatenate([rows[gaps < radius], ties[some_of(len(ties), 4 * reach, *parts, 3)]])


def _in_turn(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return one of each in turn, then what is left of the longer one."""
    both = min(len(first), len(second))
    pairs = np.stack([first[:both], second[:both]], axis=1).ravel()
    return np.concatenate([pairs, first[both:], second[both:]])
