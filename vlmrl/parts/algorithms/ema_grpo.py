"""EMA-GRPO: the group's mean as baseline, and the moving deviation of the task's rewards as scale.

Source: Feng et al. 2025, "OneThinker", arXiv 2512.03043, and its code (core_algos): a group in which an
advantage would exceed 5 is divided by its own deviation. The strategy `moving_deviation` keeps those of
the tasks; a group of which it knows none is divided by its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe, check_positive
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts

EPS = 1e-6
"""Added to deviations, as in its code."""


@dataclass(frozen=True, slots=True)
class EmaGrpo(Grpo):
    """GRPO scaled by task, with the strategy `moving_deviation`. Example: EmaGrpo(largest=5.0)."""

    baseline: Literal["mean"] = "mean"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"
    largest: float = 5.0
    """Advantage above which, or below minus which, a group is divided by its own deviation."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        check_positive(self, "largest")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return rewards less the group's mean over the task's deviation, [P, G]."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        count = rewards.valid.sum(-1, keepdim=True)
        biased = ((count - 1).clamp(min=0) / count.clamp(min=1)).sqrt()
        own = filters.deviation(rewards.total, rewards.valid) * biased
        metas = [prompt.sample.meta for prompt in rollouts.batch.prompts]
        moving = [meta.get(filters.MOVING_DEVIATION, torch.nan) for meta in metas]
        known = torch.tensor(moving)[:, None]  # [P, 1], of no groups too
        scaled = plain.values / (torch.where(known.isnan(), own, known) + EPS)
        far = (scaled.abs() > self.largest).any(-1, keepdim=True)
        return replace(plain, values=torch.where(far, plain.values / (own + EPS), scaled))
