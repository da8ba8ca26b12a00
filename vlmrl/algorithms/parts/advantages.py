"""Advantages of whole completions relative to their group.

Rewards are [P, G] (P prompts, G completions), `valid` [P, G] bool. Rollouts that are not valid take
no part in any statistic and get 0, whatever their reward says. Results are float32, computed in
float64.
"""

from __future__ import annotations

import torch

from vlmrl.algorithms.parts.filters import uniform

EPS = 1e-4
"""Added to the deviation, as in TRL and the R1-V family of trainers."""


def from_mean(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the group's mean, [P, G].

    Source: Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783, section 3.2.
    """
    return torch.where(valid, _deviations(rewards, valid), 0.0).float()


def from_others(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of the OTHER rollouts of its group, [P, G]; 0 where there is no other.

    Equal to n / (n - 1) * (reward - mean). Source: Ahmadian et al. 2024 (RLOO), arXiv 2402.14740,
    section 2.2.
    """
    n = valid.sum(-1, keepdim=True)
    scale = n / (n - 1).clamp(min=1)
    return torch.where(valid, scale * _deviations(rewards, valid), 0.0).float()


def from_batch(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of all rewards of the batch, [P, G]; exactly 0 where all are equal."""
    flat = from_mean(rewards.view(1, -1), valid.view(1, -1)).view_as(rewards)
    return flat.masked_fill(uniform(rewards.view(1, -1), valid.view(1, -1)), 0.0)


def from_zero(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the reward itself, [P, G]."""
    return torch.where(valid, rewards, 0.0).float()


def deviation(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Compute the unbiased (n - 1) standard deviation of each group, [P, 1]; 0 below two rollouts.

    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300, section 4.1.2; unbiased as TRL has it.
    """
    n = valid.sum(-1, keepdim=True)
    squares = torch.where(valid, _deviations(rewards, valid), 0.0).square().sum(-1, keepdim=True)
    return (squares / (n - 1).clamp(min=1)).sqrt().float()


def _deviations(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    known = torch.where(valid, rewards.double(), 0.0)
    mean = known.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    return known - mean
