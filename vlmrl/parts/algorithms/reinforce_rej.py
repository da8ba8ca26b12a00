"""Reinforce-Rej: +1 for right and -1 for wrong completions, without groups that are all right or all wrong.

Source: Xiong et al. 2025, "A Minimalist Approach to LLM Reasoning", arXiv 2504.11343, section 3; its
released runs have PPO's ratio and clip. Right is a reward above `correct_above`. Rejected groups stay in
the denominators, as in its code; `dynamic_sampling_batches` replaces them.
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
    right: float = 1.0
    """Advantage of a right completion."""
    wrong: float = -1.0
    """Advantage of a wrong completion."""
    correct_above: float = 0.5
    """A completion is right if its reward is larger."""

    @property
    def only_uniform_is_silent(self) -> bool:
        """Return yes: they are rejected."""
        return True

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return `right` or `wrong` for each completion, [P, G]; 0 where not valid and in uniform groups."""
        values = torch.where(rewards.total > self.correct_above, self.right, self.wrong)
        uniform = advantages.uniform(rewards.total, rewards.valid)
        return torch.where(rewards.valid & ~uniform[:, None], values, 0.0)
