"""A negative control: the same rewards, permuted over the whole batch. Nothing can be learned from them."""

from __future__ import annotations

import torch

from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.step_extension import Draw, StepExtension

__all__ = ["ShuffledRewards"]

SEED_PURPOSE = 12


class ShuffledRewards(StepExtension):
    """The extension behind `control.shuffle_rewards`."""

    def extend_scored(
        self, rollouts: Rollouts, rewards: Rewards, draw: Draw
    ) -> tuple[Rollouts, Rewards]:
        """Permute totals and validity over all completions [P * G]; verdicts stay where they are."""
        generator = torch.Generator().manual_seed(draw.seed(SEED_PURPOSE))
        order = torch.randperm(rewards.total.numel(), generator=generator)
        order = order.view(rewards.total.shape)
        total, valid = rewards.total.flatten()[order], rewards.valid.flatten()[order]
        return rollouts, Rewards(total, valid, rewards.verdicts)
