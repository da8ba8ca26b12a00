"""GTR: GRPO on what the policy did, imitation of corrected thoughts.

Source: Wei et al. 2025, "GTR: Guided Thought Reinforcement", arXiv 2503.08525, and its code: the loss of
the policy plus -log p of thoughts that a corrector rewrote, each a mean over its own rows. Rows of origin
`demonstration` are such thoughts (strategy `corrections`); they have no part in advantages. Differs: GRPO in
place of PPO with a critic, on whole completions, there on the action and a share of the thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms import origins
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts, TrainBatch


@dataclass(frozen=True, slots=True)
class Gtr(Grpo):
    """GRPO with corrected thoughts, for the strategy `corrections`. Example: Gtr(imitation=1.0)."""

    imitation: float = 1.0
    """Weight of -log p of a corrected thought's tokens."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if self.imitation < 0:
            raise ValueError(f"expected imitation of at least 0, got {self.imitation}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages of what the policy sampled, [P, G], and what the rest is imitated with."""
        plain = origins.advantages(self, rewards, rollouts, progress)
        shown = torch.tensor(
            [[c.origin == "demonstration" for c in group] for group in rollouts.completions]
        ).reshape(rewards.total.shape)
        if not shown.any():
            return plain
        return replace(plain, extra={**plain.extra, "imitate": self.imitation * shown.float()})

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with means over the corrected thoughts and over the other rows."""
        return origins.own_means(Grpo.prepare(self, batches, progress), self.aggregation)
