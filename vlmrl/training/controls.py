"""Negative controls, of which nothing can be learned: the rewards permuted over the batch, or drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vlmrl.config import ControlConfig
from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy

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


@dataclass(frozen=True)
class RandomRewards(Strategy):
    """The strategy behind `control.random_rewards`."""

    chance: float = 0.5

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Replace totals [P, G] by 1 or 0 at random; what has no reward has none, verdicts stay."""
        generator = torch.Generator().manual_seed(draw.seed(SEED_PURPOSE))
        total = (torch.rand(rewards.total.shape, generator=generator) < self.chance).float()
        return rollouts, replace(rewards, total=torch.where(rewards.valid, total, 0.0))


def build_controls(control: ControlConfig) -> list[Strategy]:
    """Return what a config's `control` asks for, in the order in which it acts."""
    drawn = [] if control.random_rewards is None else [RandomRewards(control.random_rewards)]
    return [*drawn, ShuffledRewards()] if control.shuffle_rewards else [*drawn]
