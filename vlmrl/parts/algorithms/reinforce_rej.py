"""Reinforce-Rej: the reward itself as advantage, without the groups that are all right or all wrong.

Source: Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning", arXiv 2504.11343, section 3; its
released runs have PPO's ratio and clip. Rejected groups stay in the denominators, as in its code;
`dynamic_sampling_batches` replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms import advantages
from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class ReinforceRej(Grpo):
    """REINFORCE without a baseline on groups that differ. Example: ReinforceRej(kl=0.001)."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"

    @property
    def only_uniform_is_silent(self) -> bool:
        """Return yes: they are rejected."""
        return True

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return the rewards, those of uniform groups as 0, [P, G]."""
        uniform = advantages.uniform(rewards.total, rewards.valid)
        return Grpo.estimate(self, rewards).masked_fill(uniform[:, None], 0.0)
