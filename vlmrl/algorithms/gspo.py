"""GSPO: one ratio a completion, the geometric mean of its tokens' ratios, and a narrow clip.

Source: Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, eq. 5 and 7; clip
3e-4 and 4e-4 as in its section 5.1. `correction` is by the geometric mean, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.grpo import Grpo
from vlmrl.algorithms.parts import surrogates
from vlmrl.algorithms.recipes import clip_metrics, weight_metrics


@dataclass(frozen=True, slots=True)
class Gspo(Grpo):
    """Group sequence policy optimisation. Example: Gspo(clip_high=5e-4)."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the completion's clipped ratio times its advantage, on each token, [B, T]."""
        if self.correction == "one_sided":
            log_weight = surrogates.mean_log_ratio(inputs.new, inputs.sampling, inputs.mask)
            cap = self.importance_cap
            losses = surrogates.one_sided(inputs.new, log_weight, inputs.advantages, cap)
            return losses, weight_metrics(log_weight, inputs, cap)
        ratio = self.ratio(inputs)
        losses = surrogates.clipped(
            ratio, inputs.advantages, self.clip_low, self.clip_high, self.dual_clip
        )
        mismatch = surrogates.mean_log_ratio(inputs.old, inputs.sampling, inputs.mask)
        losses = (losses * self.importance(mismatch)).expand_as(inputs.new)
        return losses, clip_metrics(ratio, inputs, self.clip_low, self.clip_high)

    def ratio(self, inputs: LossInputs) -> torch.Tensor:
        """Return what is clipped: the geometric mean of new / old probability, [B, 1]."""
        return surrogates.mean_log_ratio(inputs.new, inputs.old, inputs.mask).exp()
