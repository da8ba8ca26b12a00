"""Prioritised advantage distillation: the completions of a batch are drawn again by their advantage.

Source: Chen et al. 2025, "Advancing Multimodal Reasoning: From Optimized Cold Start to Staged Reinforcement
Learning" (ReVisual-R1), arXiv 2506.04207, and its code (ray_trainer): of the completions with
|advantage| between two thresholds, some are drawn with a chance of |advantage|^alpha, with replacement. One
that is drawn twice counts twice. Differs: a step has as many updates as before, and with several of them a
completion stays in its own; where aggregation is by tokens, a completion drawn twice adds no tokens to the
mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from vlmrl.schema import Advantages, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy

SEED_PURPOSE = 28


@dataclass(frozen=True)
class AdvantageSampling(Strategy):
    """Completions of the batch by |advantage|. Example: AdvantageSampling(low=0.05, high=0.95)."""

    curves: ClassVar[Mapping[str, str]] = {
        "advantage_sampling/able": "Share of completions whose advantage is between the thresholds.",
    }

    low: float = 0.05
    """A completion is drawn if |advantage| is above this,"""
    high: float = 0.95
    """and below this."""
    alpha: float = 1.0
    """The chance is in proportion to |advantage|^alpha."""
    ratio: float = 1.0
    """Draws, as a share of the batch's completions."""

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"expected 0 <= low < high, got {self.low} and {self.high}")
        if self.ratio <= 0:
            raise ValueError(f"expected ratio above 0, got {self.ratio}")

    def select(
        self,
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
        draw: BatchDraw,
        run: RunParts,
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Draw from the batch, if anything is between the thresholds; else leave it as it is."""
        size = advantages.values.abs()
        size = size.mean(-1) if size.dim() > 2 else size
        able = advantages.kept & (size > self.low) & (size < self.high)
        if not able.any():
            return rollouts, rewards, advantages
        chance = torch.where(able, size.double() ** self.alpha, 0.0)
        batch = int(advantages.kept.sum())
        count = max(1, round(self.ratio * batch))
        drawn = draw_again(advantages, chance, count, draw.seed(SEED_PURPOSE))
        curves = {"advantage_sampling/able": float(able.sum()) / batch}
        return rollouts, rewards, replace(drawn, metrics={**drawn.metrics, **curves})


def draw_again(advantages: Advantages, chance: torch.Tensor, count: int, seed: int) -> Advantages:
    """Return the advantages of `count` completions drawn with replacement, in proportion to `chance` [P, G].

    One that is drawn twice weighs twice as much; the mean weight of what is kept stays.
    """
    able = chance > 0
    shares = chance[able].double().numpy()
    times = torch.zeros(able.shape, dtype=torch.float64)
    drawn = np.random.default_rng(seed).multinomial(count, shares / shares.sum())
    times[able] = torch.from_numpy(drawn).double()
    kept = times > 0
    weights = (advantages.weights * times * int(kept.sum()) / count).float()
    return replace(advantages, kept=kept, weights=weights)
