"""RAFT: maximum likelihood of what was rewarded, and nothing else.

Source: Dong et al. 2023, arXiv 2304.06767; as Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning",
arXiv 2504.11343, section 2: A = max(r, 0), loss -A log-prob. So all-correct groups teach, all-wrong
ones do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms import losses
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class Raft(Recipe):
    """Reward-ranked fine-tuning, step by step. Example: Raft(kl=0.001)."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"
    only_best: bool = False
    """Imitate the best completion of a group alone, the first of equal ones: best of N."""

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return the rewards, negative ones as 0, and with `only_best` all but one of a group, [P, G]."""
        values = rewarded(self, rewards)
        if not self.only_best:
            return values
        best = values.argmax(-1, keepdim=True)
        return torch.zeros_like(values).scatter(-1, best, values.gather(-1, best))

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -A log-prob per token, [B, T], without a ratio."""
        return losses.reinforce(inputs.new, inputs.advantages), {}


def rewarded(recipe: Recipe, rewards: Rewards) -> torch.Tensor:
    """Return the rewards against a recipe's baseline, negative ones as 0, [P, G]."""
    return Recipe.estimate(recipe, rewards).clamp(min=0)
