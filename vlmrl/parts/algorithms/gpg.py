"""GPG: the plain policy gradient with a group baseline; no ratio, no clip, no reference.

Source: Chu et al. 2025, arXiv 2504.02546: loss -A * log-prob, A = alpha * (r - mean) / F_norm with
F_norm = 1, and alpha = B / (B - M) for M uniform groups among B, which only dilute the gradient.
The paper averages over tokens; its multimodal code over completions (`aggregation: sequence`).
Its threshold for drawing more batches is `dynamic_sampling_share`: the step then trains on the groups with a
gradient alone, alpha being 1. Its code fills the batch with uniform groups and scales by alpha, which is the
same mean over completions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import losses
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Gpg(Recipe):
    """Group policy gradient. Example: Gpg(scale="std")."""

    metrics: ClassVar[Mapping[str, str]] = {
        "rollout/alpha": "Counted groups over groups with a gradient, the factor of GPG's advantages.",
    }

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Aggregation = "token"

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return advantages times alpha [P, G]: the groups in the denominators over those with a gradient."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        counted = plain.kept.any(-1)
        informative = counted & self.keep(rewards, progress)
        alpha = int(counted.sum()) / max(int(informative.sum()), 1)
        metrics = {**plain.metrics, "rollout/alpha": alpha}
        return dataclasses.replace(plain, values=alpha * plain.values, metrics=metrics)

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -A * log-prob per token, [B, T], without a ratio."""
        return losses.reinforce(inputs.new, inputs.advantages), {}
