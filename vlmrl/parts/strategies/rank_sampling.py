"""PF-PPO: the update draws the best and the worst of a group, and leaves out what is ranked between.

Source: Zhang et al. 2024, "Policy Filtration for RLHF to Mitigate Noise in Reward Models", arXiv
2409.06957, and its code (replay_buffer): the completions of a batch are drawn with replacement, by a weight
for their rank in their group. BW (best, worst): 1 for either; BR (best, random): 0.4 for the best, 0.1 for
each other; BoN: the best alone. Differs: advantages are against the whole group, there against a critic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlmrl.parts.strategies.advantage_sampling import draw_again
from vlmrl.schema import Advantages, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy

SEED_PURPOSE = 30


@dataclass(frozen=True)
class RankSampling(Strategy):
    """Completions by their rank in the group. Example: RankSampling(best=0.4, middle=0.1, worst=0.1)."""

    best: float = 1.0
    """Weight of the completion of a group with the largest reward; of equal ones, the last."""
    middle: float = 0.0
    """Weight of each completion between."""
    worst: float = 1.0
    """Weight of the completion with the least reward; of equal ones, the first."""

    def __post_init__(self) -> None:
        if min(self.best, self.middle, self.worst) < 0 or self.best + self.worst == 0:
            raise ValueError(
                "expected weights of at least 0, and best or worst above it, got "
                f"{self.best}, {self.middle} and {self.worst}"
            )

    def select(
        self,
        rollouts: Rollouts,
        rewards: Rewards,
        advantages: Advantages,
        draw: BatchDraw,
        run: RunParts,
    ) -> tuple[Rollouts, Rewards, Advantages]:
        """Draw as many completions as the batch has; one that is never drawn is left out."""
        if not advantages.kept.any():
            return rollouts, rewards, advantages
        chance = torch.zeros(advantages.kept.shape, dtype=torch.float64)
        for p, kept in enumerate(advantages.kept):
            places = kept.nonzero()[:, 0]
            order = places[rewards.total[p][places].argsort(stable=True)]
            chance[p, order] = self.middle
            chance[p, order[:1]] = self.worst
            chance[p, order[-1:]] = self.best
        count = int(advantages.kept.sum())
        drawn = draw_again(advantages, chance, count, draw.seed(SEED_PURPOSE))
        return rollouts, rewards, drawn
