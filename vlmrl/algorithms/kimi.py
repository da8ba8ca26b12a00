"""Kimi k1.5: REINFORCE on whole completions with a squared log ratio that holds the policy near the old.

Source: Kimi Team 2025, "Kimi k1.5", arXiv 2501.12599, eq. 3: the gradient of log-prob times (r - mean),
less half of tau times that of the squared log ratio of the whole completion; no clip. The paper gives
no tau. Differs: the optimizer's moments are kept (the paper resets them when the old policy changes);
its length reward is the verifier `length_kimi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.parts import surrogates
from vlmrl.algorithms.recipes import Recipe, weight_metrics


@dataclass(frozen=True, slots=True)
class Kimi(Recipe):
    """The squared log-ratio surrogate of Kimi k1.5. Example: Kimi(tau=0.05)."""

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Literal["sequence"] = "sequence"
    tau: float = 0.1
    """Weight of half the squared log ratio."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.tau < 0:
            raise ValueError(f"expected tau of at least 0, got {self.tau}")

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Compute the completion's loss, on each token, so that its mean over them is that loss, [B, T]."""
        whole = torch.where(inputs.mask, inputs.new, 0.0).sum(-1, keepdim=True)
        log_ratio = surrogates.sequence_log_ratio(inputs.new, inputs.old, inputs.mask)
        held = self.tau / 2 * log_ratio.square()
        if self.correction == "one_sided":
            log_weight = surrogates.sequence_log_ratio(inputs.new, inputs.sampling, inputs.mask)
            cap = self.importance_cap
            losses = surrogates.one_sided(whole, log_weight, inputs.advantages, cap) + held
            return losses.expand_as(inputs.new), weight_metrics(log_weight, inputs, cap)
        mismatch = surrogates.sequence_log_ratio(inputs.old, inputs.sampling, inputs.mask)
        losses = surrogates.reinforce(whole, inputs.advantages) + held
        losses = (losses * self.importance(mismatch)).expand_as(inputs.new)
        return losses, {"loss/ratio": log_ratio.exp().expand_as(inputs.new)}
