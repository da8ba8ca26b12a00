"""REINFORCE++: the divergence in the reward, return-to-go, advantages whitened over the whole batch.

Source: Hu 2025, "REINFORCE++", arXiv 2501.03262, section 3, with PPO's clip and a mean over tokens;
variance as in verl. No group is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlmrl.algorithms import advantages
from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import TrainBatch


@dataclass(frozen=True, slots=True)
class ReinforcePp(Grpo):
    """PPO without a critic; `rollout.group_size` may be 1. Example: ReinforcePp(kl=0.01)."""

    baseline: Literal["mean", "leave_one_out", "batch", "none"] = "batch"
    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Aggregation = "token"
    kl_in_reward: bool = True

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with whitened advantages of tokens, [B, T]."""
        return advantages.whiten(Grpo.prepare(self, batches, progress))
