"""Observe-R1: prompts that are neither easy nor hard weigh most, the shortest right answer gets a bonus.

Source: Guo et al. 2025, "Observe-R1", arXiv 2505.12432, and its code (experience_maker): advantages
times 4 sigma d (1 - d) for a pass rate d; +0.2 for the shortest right completion if it has more than
100 tokens; the divergence is k1 in the reward (0.01 there), a mean over tokens. Differs: right is a
reward above `correct_above`; 1e-4 is added to the deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class ObserveR1(Grpo):
    """GRPO with dynamic weights by pass rate. Example: ObserveR1(kl=0.01)."""

    aggregation: Aggregation = "token"
    kl_in_reward: bool = True
    correct_above: float = 0.5
    """A completion is right if its reward is larger."""
    sigma: float = 1.8
    """Weight of a prompt that is solved half of the time."""
    bonus: float = 0.2
    """Added to the reward of the shortest right completion of a group."""
    bonus_tokens: int = 100
    """A completion of at most this many tokens gets no bonus."""

    def shape(
        self, rewards: Rewards, rollouts: Rollouts, max_tokens: int, progress: float = 0.0
    ) -> Rewards:
        """Return the rewards with the bonus added, [P, G]; the first of several shortest gets it."""
        right = filters.right(rewards, self.correct_above) & rewards.valid
        lengths = filters.lengths(rollouts, rewards.total).masked_fill(~right, torch.inf)
        if not lengths.numel():
            return rewards
        shortest, column = lengths.min(-1)
        paid = (shortest > self.bonus_tokens) & shortest.isfinite()
        added = torch.zeros_like(rewards.total).scatter(-1, column[:, None], self.bonus)
        return replace(rewards, total=rewards.total + added * paid[:, None])

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages times the weight of their prompt, [P, G]."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        rate = filters.pass_rate(filters.right(rewards, self.correct_above), rewards.valid)
        weight = 4 * self.sigma * rate * (1 - rate)
        return replace(plain, values=plain.values * weight)
