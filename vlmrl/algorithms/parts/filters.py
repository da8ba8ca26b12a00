"""Which groups are worth training on, and what is right in them."""

from __future__ import annotations

import torch

from vlmrl.schema import Rewards, Rollouts

SPREAD = 1e-6
"""Rewards closer than this are equal: they differ by rounding only."""


def uniform(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Which groups have no gradient, bool [P]: equal valid rewards, or fewer than two valid ones.

    `rewards` [P, G], `valid` [P, G] bool.
    """
    highest = torch.where(valid, rewards, -torch.inf).amax(-1)
    lowest = torch.where(valid, rewards, torch.inf).amin(-1)
    return ~(highest - lowest > SPREAD)


def right(rewards: Rewards, above: float) -> torch.Tensor:
    """Which completions are right, bool [P, G]: those of a larger reward than `above`."""
    return (rewards.total > above) & rewards.valid


def pass_rate(right: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Compute the share of right completions among the valid ones of each group, [P, 1] in [0, 1]."""
    return (right & valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)


def lengths(rollouts: Rollouts, like: torch.Tensor) -> torch.Tensor:
    """Count the tokens of every completion, float [P, G], the shape of `like`."""
    counts = [[c.num_tokens for c in group] for group in rollouts.completions]
    return torch.tensor(counts, dtype=torch.float32).reshape(like.shape)
