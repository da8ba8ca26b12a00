"""W-REINFORCE: a small reward for right answers, a punishment for wrong ones, and no baseline.

Source: Zhu et al. 2025, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
arXiv 2506.01347, section 5: +0.1 and -1, with PPO's ratio and clip. Right is a reward above
`correct_above`, where the paper has rewards of 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards


@dataclass(frozen=True, slots=True)
class WReinforce(Grpo):
    """Weighted REINFORCE: mostly negative reinforcement, so that diversity stays. Example: WReinforce()."""

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"
    right: float = 0.1
    """Advantage of a right completion."""
    wrong: float = -1.0
    """Advantage of a wrong completion."""
    correct_above: float = 0.5
    """A completion is right if its reward is larger."""

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return `right` or `wrong` for each completion, [P, G]; 0 where not valid."""
        values = torch.where(rewards.total > self.correct_above, self.right, self.wrong)
        return torch.where(rewards.valid, values, 0.0)
