"""OPO: the mean reward weighted by lengths as baseline, which has the least variance of all baselines.

Source: Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585, eq. 10, for one
update a batch: the squared norm of a completion's gradient is taken as proportional to its length.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Opo(Grpo):
    """On-policy optimisation with the optimal baseline. Example: Opo()."""

    baseline: Literal["mean"] = "mean"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "sum"

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return reward less the mean weighted by lengths, [P, G]; 0 in uniform groups."""
        plain = Grpo.advantages(self, rewards, rollouts, progress)
        lengths = filters.lengths(rollouts, rewards.total)
        weights = torch.where(rewards.valid, lengths, 0).double()
        known = torch.where(rewards.valid, rewards.total, 0.0).double()
        total = weights.sum(-1, keepdim=True).clamp(min=1)
        baseline = (weights * known).sum(-1, keepdim=True) / total
        silent = ~rewards.valid | filters.uniform(rewards.total, rewards.valid)[:, None]
        values = (known - baseline).masked_fill(silent, 0.0).float()
        return dataclasses.replace(plain, values=values)
