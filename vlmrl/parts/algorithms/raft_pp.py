"""RAFT++: RAFT with the ratio and clip of PPO, so that a batch can be used for several updates.

Source: Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning", arXiv 2504.11343, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.parts.algorithms.raft import rewarded
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class RaftPp(Grpo):
    """RAFT with ratio and clip. Example: RaftPp(kl=0.001)."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return the rewards, negative ones as 0, [P, G]."""
        return rewarded(self, rewards)
