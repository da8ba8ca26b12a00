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

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.parts import surrogates
from vlmrl.algorithms.parts.aggregations import Aggregation
from vlmrl.algorithms.recipes import Recipe, one_sided_loss
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class Raft(Recipe):
    """Reward-ranked fine-tuning, step by step. Example: Raft(kl=0.001)."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return the rewards, negative ones as 0, [P, G]."""
        return Recipe.estimate(self, rewards).clamp(min=0)

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -A log-prob per token, [B, T], weighted as `correction` says."""
        if self.correction == "one_sided":
            return one_sided_loss(inputs, self.importance_cap)
        mismatch = surrogates.log_ratio(inputs.old, inputs.sampling, inputs.mask)
        return surrogates.reinforce(inputs.new, inputs.advantages) * self.importance(mismatch), {}
