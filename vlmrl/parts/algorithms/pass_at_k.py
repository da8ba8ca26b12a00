"""Pass@k as the reward of a group: only its best completion is reinforced, by its lead over the second.

Source: Tang et al. 2025, "Optimizing Language Models for Inference Time Objectives using Reinforcement
Learning", arXiv 2503.19595, the leave-one-out estimate of the group's maximum. Differs from the version in
verl: it is not divided by the group's deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class PassAtK(Grpo):
    """GRPO for the best of the group. Example: PassAtK()."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"

    @property
    def smallest_group(self) -> int:
        """Return two: the best leads over another."""
        return 2

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return best less second best for the best completion, 0 for the others, [P, G]."""
        known = torch.where(rewards.valid, rewards.total, -torch.inf)
        values = torch.zeros_like(rewards.total)
        best = known.topk(min(2, known.shape[1]), dim=-1)
        lead = torch.nan_to_num(best.values[:, 0] - best.values[:, -1], nan=0.0, posinf=0.0)
        return values.scatter(-1, best.indices[:, :1], lead[:, None])
