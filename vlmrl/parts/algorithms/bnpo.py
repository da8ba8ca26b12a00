"""BNPO: the group's mean as baseline, and a Beta density, fitted to the batch's pass rates, as scale.

Source: Xiao et al. 2025, "Beta Normalization Policy Optimization", arXiv 2506.02864, eq. 8 to 12:
A = (r - p) / f(p; 1 + a/3, 1 + b/3), p the group's mean reward, (a, b) the Beta distribution with the mean
and variance of p over the batch. What TRL and ms-swift call bnpo is a mean over tokens: `grpo` with
`aggregation: token`. Differs: 1 / f is bounded by 10, by 1e6 in its code, which advises a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms import advantages
from vlmrl.algorithms.advantages import SPREAD
from vlmrl.algorithms.recipes import check_positive
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class Bnpo(Grpo):
    """Beta normalisation of binary rewards. Example: Bnpo(highest=1.5)."""

    baseline: Literal["mean"] = "mean"
    scale: Literal["none"] = "none"
    lowest: float = 0.0
    """The reward that counts as wrong; lower ones count as this."""
    highest: float = 1.0
    """The reward that counts as right; higher ones count as this."""
    max_factor: float = 10.0
    """Bound of 1 over the density."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if not self.lowest < self.highest:
            raise ValueError(f"expected lowest below highest, got {self.lowest}, {self.highest}")
        check_positive(self, "max_factor")

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return (r - p) over the density at p, [P, G]; 0 where not valid."""
        spread = self.highest - self.lowest
        total = ((rewards.total.double() - self.lowest) / spread).clamp(0, 1)
        known = torch.where(rewards.valid, total, 0.0).sum(-1, keepdim=True)
        rates = known / rewards.valid.sum(-1, keepdim=True).clamp(min=1)
        log_density = beta_log_density(rates, *fitted(rates[rewards.valid.any(-1)]))
        factor = (-log_density).exp().clamp(max=self.max_factor)
        return (factor * advantages.from_mean(total, rewards.valid)).float()


def fitted(rates: torch.Tensor) -> tuple[float, float]:
    """Return alpha, beta >= 1 of the scale's density, from pass rates of at least two groups, else 1, 1."""
    if len(rates) < 2 or (variance := rates.var().item()) < SPREAD**2:
        return 1.0, 1.0
    mean = rates.mean().item()
    size = mean * (1 - mean) / variance - 1
    return max(1 + size * mean / 3, 1.0), max(1 + size * (1 - mean) / 3, 1.0)


def beta_log_density(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """Return the log of the density of Beta(alpha, beta) at x in [0, 1]."""
    a, b = torch.tensor(alpha).double(), torch.tensor(beta).double()
    norm = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    return torch.xlogy(a - 1, x) + torch.xlogy(b - 1, 1 - x) - norm
