"""EMA-GRPO's moving deviation: how far rewards of a task scatter, over the batches of the whole run.

Source: Feng et al. 2025, "OneThinker", arXiv 2512.03043, and its code (core_algos): the first two moments of
a task's rewards, those of the first batch to begin with, then moving means; the batch in hand counts.
A task is a training source. Differs: with dynamic sampling every batch drawn counts, there the groups that
are kept; there each process has numbers of its own, which no checkpoint holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from vlmrl.algorithms.advantages import MOVING_DEVIATION
from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy


@dataclass(frozen=True)
class MovingDeviation(Strategy):
    """A source's moving deviation of rewards, for `ema_grpo`. Example: MovingDeviation(decay=0.97)."""

    curves: ClassVar[Mapping[str, str]] = {
        "moving_deviation/mean": "Mean over the groups of the moving deviation of their source's rewards.",
    }
    state_names: ClassVar[tuple[str, ...]] = ("means", "squares", "batches")
    """By training source [S] float64: moving means of rewards and of their squares, and their batches."""

    decay: float = 0.99
    """What is kept of the moving means at each batch with rewards of the source."""
    least: float = 1e-3
    """Least deviation."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"expected decay in [0, 1), got {self.decay}")
        if self.least <= 0:
            raise ValueError(f"expected least above 0, got {self.least}")

    def begin(self, run: RunParts) -> None:
        """Begin without any rewards."""
        count = len(run.loader.sources)
        self.state.update({name: np.zeros(count) for name in self.state_names})

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Take in the batch's rewards, and tell each sample the deviation of its source."""
        numbers = {source.name: number for number, source in enumerate(run.loader.sources)}
        sources = [numbers[prompt.sample.source] for prompt in rollouts.batch.prompts]
        of_row = torch.tensor(sources)[:, None].expand_as(rewards.total)
        for number in sorted(set(sources)):
            known = rewards.total[(of_row == number) & rewards.valid].double().numpy()
            if len(known):
                self._take_in(number, known)
        means, squares = self.state["means"], self.state["squares"]
        deviations = np.sqrt(np.maximum(squares - means**2, self.least**2))
        prompts = list(rollouts.batch.prompts)
        for p, number in enumerate(sources):
            if self.state["batches"][number]:
                meta = {**prompts[p].sample.meta, MOVING_DEVIATION: float(deviations[number])}
                prompts[p] = replace(prompts[p], sample=replace(prompts[p].sample, meta=meta))
        return replace(rollouts, batch=replace(rollouts.batch, prompts=tuple(prompts))), rewards

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Return the mean deviation that `curves` names; empty before any reward."""
        metas = [prompt.sample.meta for prompt in rollouts.batch.prompts]
        known = [meta[MOVING_DEVIATION] for meta in metas if MOVING_DEVIATION in meta]
        return {"moving_deviation/mean": statistics.fmean(known)} if known else {}

    def _take_in(self, number: int, rewards: np.ndarray) -> None:
        moving = {name: values.copy() for name, values in self.state.items()}
        kept = self.decay if moving["batches"][number] else 0.0
        for name, value in (("means", rewards.mean()), ("squares", (rewards**2).mean())):
            moving[name][number] = kept * moving[name][number] + (1 - kept) * value
        moving["batches"][number] += 1
        self.state.update(moving)
