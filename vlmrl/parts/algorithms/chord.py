"""CHORD: supervised learning on demonstrations as a weighted part of GRPO's loss.

Source: Zhang et al. 2025, "On-Policy RL Meets Off-Policy Experts", arXiv 2508.11408, eq. 4 and 6, and
Trinity-RFT's and ms-swift's code: (1 - mu) GRPO + mu SFT, each over its own rows; a demonstrated
token of probability p counts p (1 - p). Rows of origin `demonstration` have no part in advantages.
Differs: the paper's mu of its first form falls from 0.9 to 0.05, which is a schedule of `mu` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import origins
from vlmrl.algorithms.base import LossInputs
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts, TrainBatch


@dataclass(frozen=True, slots=True)
class Chord(Grpo):
    """GRPO and supervised learning in one loss. Example: Chord(mu=0.1)."""

    metrics: ClassVar[Mapping[str, str]] = {
        "loss/demonstration": "Weighted -log-prob of demonstrated tokens, over all loss tokens.",
    }

    mu: float = 0.1
    """Weight of the demonstrations; GRPO has 1 - mu where a step has any."""
    phi: bool = True
    """Weigh a demonstrated token by p (1 - p): neither what is known nor what is out of reach."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if not 0 <= self.mu <= 1:
            raise ValueError(f"expected mu in [0, 1], got {self.mu}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages of what the policy sampled, [P, G]; the rest gets 0 and is kept."""
        return origins.advantages(self, rewards, rollouts, progress)

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with means over the demonstrations and over the other rows."""
        return origins.own_means(Grpo.prepare(self, batches, progress), self.aggregation)

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return mu times the weighted -log-prob, or 1 - mu times GRPO's loss, [B, T]."""
        losses, metrics = Grpo.policy_loss(self, inputs)
        if "origin" not in inputs.extra:
            return losses, {**metrics, "loss/demonstration": torch.zeros_like(inputs.new)}
        shown = inputs.of_origin("demonstration")
        new = torch.where(inputs.mask, inputs.new, 0.0)
        chance = new.detach().exp()
        copied = -new * (chance * (1 - chance) if self.phi else 1.0)
        mixed = torch.where(shown, self.mu * copied, (1 - self.mu) * losses)
        return mixed, {**metrics, "loss/demonstration": torch.where(shown, copied, 0.0)}
