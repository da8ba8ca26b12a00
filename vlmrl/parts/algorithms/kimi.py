"""Kimi k1.5: REINFORCE on whole completions with a squared log ratio that holds the policy near the old.

Source: Kimi Team 2025, "Kimi k1.5", arXiv 2501.12599, eq. 3: the gradient of log-prob times (r - mean),
less half of tau times that of the squared log ratio of the whole completion; no clip. The paper gives
no tau. That the optimizer's moments are forgotten when the old policy changes is `optimizer.reset_every: 1`;
its length reward is the verifier `length_kimi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import Recipe


@dataclass(frozen=True, slots=True)
class Kimi(Recipe):
    """The squared log-ratio surrogate of Kimi k1.5. Example: Kimi(tau=0.05)."""

    of_wholes: ClassVar[bool] = True

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Literal["sequence"] = "sequence"
    tau: float = 0.1
    """Weight of half the squared log ratio."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.tau < 0:
            raise ValueError(f"expected tau of at least 0, got {self.tau}")

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Compute the completion's loss, [B, 1]: on each token, so that its mean over them is that loss."""
        losses = surrogates.reinforce(self.logprobs(inputs), inputs.advantages) + self._held(inputs)
        log_ratio = self.log_ratio(inputs.new, inputs.old, inputs.mask)
        return losses, {"loss/ratio": log_ratio.exp().expand_as(inputs.new)}

    def one_sided(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss of `correction: one_sided`, which leaves the penalty's weight at 1."""
        losses, metrics = Recipe.one_sided(self, inputs)
        return losses + self._held(inputs), metrics

    def _held(self, inputs: LossInputs) -> torch.Tensor:
        return self.tau / 2 * self.log_ratio(inputs.new, inputs.old, inputs.mask).square()

    def log_ratio(self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the log of the ratio of whole completions, [B, 1]."""
        return surrogates.sequence_log_ratio(new, old, mask)

    def logprobs(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log-probs of whole completions, [B, 1]."""
        return torch.where(inputs.mask, inputs.new, 0.0).sum(-1, keepdim=True)
