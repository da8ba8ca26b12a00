"""APO: less divergence where the prompt is hard, and a little more blame for long wrong thoughts.

Source: View-R1, "APO: Asymmetric Policy Optimization", arXiv 2506.21655, and its code
(ppo_actor and experience_maker). DADS: with difficulty d = 1 - pass rate, the divergence of a
completion of positive advantage counts 1 - exp(-e (1 - d)), or 1 where d is 0 or 1; it has an effect
only with `kl` (0.001 there). STCR: a wrong completion of n tokens more than the mean of the group's right
ones has its advantage multiplied by 2 - base^-n. Differs: right is a reward above `correct_above`,
there the reward cut to an integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Apo(Grpo):
    """Asymmetric policy optimisation, DADS and STCR. Example: Apo(kl=0.001)."""

    correct_above: float = 0.5
    """A completion is right if its reward is larger."""
    length_base: float = 1.00001
    """Base of STCR's factor: 1000 tokens too many multiply the advantage by 1.01. 1: off."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if self.length_base < 1:
            raise ValueError(f"expected length_base of at least 1, got {self.length_base}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages times STCR's factor, [P, G], and DADS's weight for the loss."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        right = filters.right(rewards, self.correct_above)
        values = plain.values * long_wrong_factor(
            right, rewards.valid, filters.lengths(rollouts, rewards.total), self.length_base
        )
        rate = filters.pass_rate(right, rewards.valid)
        weight = torch.where(values > 0, divergence_weight(1 - rate), 1.0)
        return replace(plain, values=values, extra={"kl_weight": weight})

    def divergence(self, inputs: LossInputs) -> torch.Tensor:
        """Return the divergence per token times the weight of its completion, [B, T]."""
        return inputs.extra["kl_weight"] * Recipe.divergence(self, inputs)


def divergence_weight(difficulty: torch.Tensor) -> torch.Tensor:
    """Return DADS's weight 1 - exp(-e (1 - d)) of a right completion; 1 where d is 0 or 1."""
    weight = 1 - (-math.e * (1 - difficulty)).exp()
    return torch.where((difficulty > 0) & (difficulty < 1), weight, 1.0)


def long_wrong_factor(
    right: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor, base: float
) -> torch.Tensor:
    """Return STCR's factor [P, G]: at least 1, and 1 for what is right or where nothing is."""
    right = right & valid
    count = right.sum(-1, keepdim=True)
    usual = (lengths * right).sum(-1, keepdim=True) / count.clamp(min=1)
    surplus = (lengths - usual).clamp(min=0).double()
    factor = 2 - base ** (-surplus)
    return torch.where(valid & ~right & (count > 0), factor, 1.0).float()
