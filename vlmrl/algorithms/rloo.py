"""RLOO: each completion against the mean of the others, its whole probability as one action.

Source: Ahmadian et al. 2024, "Back to basics", arXiv 2402.14740; ratio and clip of whole
completions as in TRL. Differs: the divergence is a loss per token, not a part of the reward; k2 has
the on-policy gradient that k1 in the reward has, token by token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.parts import surrogates
from vlmrl.algorithms.parts.divergences import Estimator
from vlmrl.algorithms.recipes import Recipe, check_clip_range, clip_metrics, weight_metrics


@dataclass(frozen=True, slots=True)
class Rloo(Recipe):
    """REINFORCE leave-one-out. Example: Rloo(kl=0.01)."""

    baseline: Literal["mean", "leave_one_out", "batch", "none"] = "leave_one_out"
    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Literal["sequence"] = "sequence"
    kl_estimator: Estimator = "k2"
    clip_low: float = 0.2
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped from above at 1 + clip_high."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_clip_range(self.clip_low, self.clip_high)

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Compute the completion's clipped ratio times its advantage, on each token, [B, T].

        Its mean over the completion's tokens is then the completion's loss. `correction` is by the
        probabilities of whole completions, too.
        """
        if self.correction == "one_sided":
            return self._one_sided(inputs)
        ratio = surrogates.sequence_log_ratio(inputs.new, inputs.old, inputs.mask).exp()
        losses = surrogates.clipped(ratio, inputs.advantages, self.clip_low, self.clip_high)
        mismatch = surrogates.sequence_log_ratio(inputs.old, inputs.sampling, inputs.mask)
        weight = self.importance(mismatch)
        metrics = clip_metrics(ratio, inputs, self.clip_low, self.clip_high)
        return (losses * weight).expand_as(inputs.new), metrics

    def _one_sided(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_weight = surrogates.sequence_log_ratio(inputs.new, inputs.sampling, inputs.mask)
        whole = torch.where(inputs.mask, inputs.new, 0.0).sum(-1, keepdim=True)
        losses = surrogates.one_sided(whole, log_weight, inputs.advantages, self.importance_cap)
        return losses.expand_as(inputs.new), weight_metrics(log_weight, inputs, self.importance_cap)
