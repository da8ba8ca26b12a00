"""Lite PPO: the group's mean, the whole batch's deviation, a mean over tokens; no reference.

Source: Liu et al. 2025, "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
arXiv 2508.08221, section 5. The deviation is unbiased and 1e-4 is added to it, as in GRPO here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vlmrl.algorithms.grpo import Grpo
from vlmrl.algorithms.parts import advantages
from vlmrl.algorithms.parts.aggregations import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class LitePpo(Grpo):
    """GRPO whose advantages are scaled by the deviation of all rewards in the batch. Example: LitePpo()."""

    scale: Literal["none"] = "none"
    """The group's deviation is not used."""
    aggregation: Aggregation = "token"

    def advantages(self, rewards: Rewards, rollouts: Rollouts) -> Advantages:
        """Return reward minus the group's mean over the batch's deviation, [P, G]."""
        found = Recipe.advantages(self, rewards, rollouts)
        batch = advantages.deviation(rewards.total.view(1, -1), rewards.valid.view(1, -1))
        return replace(found, values=found.values / (batch + advantages.EPS))
