"""RLOO: each completion against the mean of the others, its whole probability as one action.

Source: Ahmadian et al. 2024, "Back to basics", arXiv 2402.14740; ratio and clip of whole
completions as in TRL. Differs: the divergence is a loss per token, not a part of the reward; k2 has
the on-policy gradient that k1 in the reward has, token by token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Estimator
from vlmrl.algorithms.recipes import Recipe, check_clip_range, clip_metrics


@dataclass(frozen=True, slots=True)
class Rloo(Recipe):
    """REINFORCE leave-one-out. Example: Rloo(kl=0.01)."""

    of_wholes: ClassVar[bool] = True

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

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Compute the completion's clipped ratio times its advantage, [B, 1].

        On each token, its mean over the completion's tokens is the completion's loss.
        """
        ratio = self.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
        losses = surrogates.clipped(ratio, inputs.advantages, self.clip_low, self.clip_high)
        return losses, clip_metrics(ratio, inputs, self.clip_low, self.clip_high)

    def log_ratio(self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the log of the ratio of whole completions, [B, 1]."""
        return surrogates.sequence_log_ratio(new, old, mask)

    def logprobs(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log-probs of whole completions, [B, 1]."""
        return torch.where(inputs.mask, inputs.new, 0.0).sum(-1, keepdim=True)
