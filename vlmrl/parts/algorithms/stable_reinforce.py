"""StableReinforce: rewards whitened over the batch, outliers left out, log ratios cut before the exponential.

Source: Zhang et al. 2025, "R1-Reward", arXiv 2505.02835, section 4.1: pre-clip at ln 1000, then PPO's
clip; advantages beyond three deviations are set to 0. The divergence is a loss per token (`kl`), or, as in
its code, a part of the reward (`kl_in_reward`): then the tokens' advantages are whitened and filtered with
it. Its reward acc * (1 + 0.5 consistency) + 0.5 format is a matter of verifiers. A group may be one
completion, as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vlmrl.algorithms import advantages, losses
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import check_positive
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import MicroBatch, Rewards, TrainBatch


@dataclass(frozen=True, slots=True)
class StableReinforce(Grpo):
    """REINFORCE with whitened, filtered advantages and a pre-clip. Example: StableReinforce(kl=0.001)."""

    baseline: Literal["batch"] = "batch"
    scale: Literal["batch"] = "batch"
    max_ratio: float = 1000.0
    """Log ratios are cut at plus and minus the log of this, before the exponential."""
    max_deviations: float = 3.0
    """Whitened advantages beyond this count as 0."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if self.max_ratio <= 1:
            raise ValueError(f"expected max_ratio above 1, got {self.max_ratio}")
        check_positive(self, "max_deviations")

    def estimate(self, rewards: Rewards) -> torch.Tensor:
        """Return whitened rewards, outliers as 0, [P, G]; less their mean alone where `prepare` whitens."""
        if self.kl_in_reward:
            return advantages.from_batch(rewards.total, rewards.valid)
        return self._drop_outliers(Grpo.estimate(self, rewards))

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches, with `kl_in_reward` their advantages whitened and filtered, [B, T]."""
        prepared = Grpo.prepare(self, batches, progress)
        if not self.kl_in_reward:
            return prepared

        def make(micro: MicroBatch) -> MicroBatch:
            return replace(micro, advantages=self._drop_outliers(micro.advantages))

        return advantages.change(advantages.whiten(prepared), make)

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return minus the clipped ratio times the advantage per token, [B, T], log ratios cut before."""
        bound = math.log(self.max_ratio)
        log_ratio = losses.log_ratio(inputs.new, inputs.old, inputs.mask).clamp(-bound, bound)
        # The new log-probs that have this ratio; where the cut acts, without gradient.
        new = torch.where(inputs.mask, inputs.old, 0.0) + log_ratio
        return Grpo.policy_loss(self, replace(inputs, new=new))

    def _drop_outliers(self, values: torch.Tensor) -> torch.Tensor:
        return values.masked_fill(values.abs() > self.max_deviations, 0.0)
