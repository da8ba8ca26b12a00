"""NFT: wrong completions train the policy, too, through the model of wrong answers that it implies.

Source: Chen et al. 2025, "Bridging Supervised Learning and Reinforcement Learning in Math Reasoning",
arXiv 2505.18116, eq. 9 and 10, and its code (dp_actor): with the pass rate p of the prompt and the
ratio R, a right token costs -log R, a wrong one -log max((1 - p R) / (1 - p), floor), whose gradient
passes the floor. On-policy the gradient is that of Dr. GRPO (`scale: none`) or of GRPO with the
population's deviation (`scale: std`). Differs: its code divides the sum over tokens by 1000, ours by
`rollout.max_tokens` and the completions; right is a reward above `correct_above`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation, log_ratio
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Advantages, Rewards, Rollouts

LOG_BOUND = 10.0
"""The log of the ratio is cut here."""


@dataclass(frozen=True, slots=True)
class Nft(Recipe):
    """Negative-aware fine-tuning, for rewards that are right or wrong. Example: Nft(correct_above=0.9)."""

    baseline: Literal["mean"] = "mean"
    scale: Literal["std", "none"] = "none"
    """Weight of a prompt with pass rate p. none: 1 - p; std: sqrt((1 - p) / p)."""
    aggregation: Aggregation = "constant"
    correction: Literal["truncated", "decoupled"] = "truncated"
    correct_above: float = 0.5
    """A completion is right if its reward is larger."""
    wrong_weight: float = 1.0
    """Weight of wrong completions; 0: train on right ones alone."""
    floor: float = 1.0
    """Least probability ratio of the implied model of wrong answers."""

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return each completion's weight on-policy, [P, G]: 1 - p or -p, over the deviation if scaled."""
        right = filters.right(rewards, self.correct_above)
        rate = filters.pass_rate(right, rewards.valid)
        values = torch.where(rewards.valid, right.float() - rate, 0.0)
        spread = (rate * (1 - rate)).sqrt().clamp(min=1e-9)
        return values / spread if self.scale == "std" else values

    def keep(self, rewards: Rewards, progress: float = 0.0) -> torch.Tensor:
        """Return which groups hold both right and wrong completions, bool [P]."""
        right = filters.right(rewards, self.correct_above)
        return ~filters.uniform(right.float(), rewards.valid)

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return `estimate`, [P, G], and for the loss what is right and how often."""
        right = filters.right(rewards, self.correct_above)
        rate = filters.pass_rate(right, rewards.valid).expand_as(rewards.total)
        extra = {"correct": right.float(), "pass_rate": rate}
        return replace(Recipe.advantages(self, rewards, rollouts, progress), extra=extra)

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss per token, [B, T]; groups with one kind of completion have none."""
        right, rate = inputs.extra["correct"], inputs.extra["pass_rate"].clamp(0.02, 0.98)
        gap = log_ratio(inputs.new, inputs.old, inputs.mask).clamp(max=LOG_BOUND)
        ratio = gap.exp()
        implied = (1 - rate * ratio) / (1 - rate)
        implied = implied + (implied.clamp(min=self.floor) - implied).detach()
        wrong = -self.wrong_weight * implied.log()
        weight = ((1 - rate) / rate).sqrt() if self.scale == "std" else 1 - rate
        losses = weight * (inputs.advantages != 0) * torch.where(right > 0, -gap, wrong)
        return losses, {"loss/ratio": ratio}
