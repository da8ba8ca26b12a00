"""LUFFY: completions of a stronger model in the policy's own groups, and a weight that shapes them.

Source: Yan et al. 2025, "Learning to Reason under Off-Policy Guidance", arXiv 2504.14945, eq. 5 to 7, and
its code: the group's mean over all of its completions, no deviation, no clip; on tokens of origin
`demonstration` p / (p + 0.1) takes the place of the ratio, so unlikely ones have the most gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Origin


@dataclass(frozen=True, slots=True)
class Luffy(Recipe):
    """Mixed-policy GRPO with shaped demonstrations. Example: Luffy(gamma=0.1)."""

    guided: ClassVar[Origin] = "demonstration"

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Aggregation = "constant"
    gamma: float = 0.1
    """A demonstrated token of this probability weighs a half."""

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the recipe's loss, or -A * p / (p + gamma) on demonstrations, [B, T]."""
        shown = inputs.of_origin(self.guided)
        chance = torch.where(inputs.mask, inputs.new, 0.0).exp()
        guided = -inputs.advantages * chance / (chance + self.gamma)
        losses, metrics = Recipe.policy_loss(self, inputs)
        return torch.where(shown, guided, losses), metrics

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -A * ratio, [B, T]."""
        ratio = self.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
        return -inputs.advantages * ratio, {"loss/ratio": ratio}
