"""Which groups are worth training on."""

from __future__ import annotations

import torch

SPREAD = 1e-6
"""Rewards closer than this are equal: they differ by rounding only."""


def uniform(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Which groups have no gradient, bool [P]: equal valid rewards, or fewer than two valid ones.

    `rewards` [P, G], `valid` [P, G] bool.
    """
    highest = torch.where(valid, rewards, -torch.inf).amax(-1)
    lowest = torch.where(valid, rewards, torch.inf).amin(-1)
    return ~(highest - lowest > SPREAD)
