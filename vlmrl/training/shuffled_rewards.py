"""A negative control: the same rewards, permuted over the whole batch. Nothing can be learned from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlmrl.schema import Rewards, Rollouts
from vlmrl.strategies.base import BatchDraw, RunParts, Strategy

__all__ = ["ShuffledRewards"]

SEED_PURPOSE = 12


@dataclass(frozen=True)
class ShuffledRewards(Strategy):
    """The strategy behind `control.shuffle_rewards`."""

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Permute totals and validity over all completions [P * G]; verdicts stay where they are."""
        generator = torch.Generator().manual_seed(draw.seed(SEED_PURPOSE))
        order = torch.randperm(rewards.total.numel(), generator=generator)
        order = order.view(rewards.total.shape)
        total, valid = rewards.total.flatten()[order], rewards.valid.flatten()[order]
        return rollouts, Rewards(total, valid, rewards.verdicts)
