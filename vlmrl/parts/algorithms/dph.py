"""DPH-RL: DAPO on what the policy cannot do yet, a mass-covering divergence on what it could do before.

Source: Li et al. 2025, "The Choice of Divergence", arXiv 2509.07430, section 4, and its code: rows of
origin `rehearsal` are completions of the model as RL began, with its log-probs; u is policy / that
model, and a token costs f(u): forward_kl u - log u - 1; js u log u - (u + 1) log((u + 1) / 2); alpha
(u^(1 - a) - (1 - a) u - a) / (a (a - 1)). They have no part in advantages and a mean of their own.
Differs: log u is cut at 20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import origins
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import log_ratio
from vlmrl.parts.algorithms.dapo import Dapo
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts, TrainBatch


@dataclass(frozen=True, slots=True)
class Dph(Dapo):
    """DAPO that rehearses what the policy knew, so that pass@k stays. Example: Dph(divergence_of="js")."""

    metrics: ClassVar[Mapping[str, str]] = {
        "loss/rehearsal": "Divergence from the model as RL began on rehearsed rows, over all tokens.",
    }

    divergence_of: Literal["forward_kl", "js", "alpha"] = "js"
    """Divergence from the model as RL began."""
    alpha: float = 0.2
    """Order of the divergence `alpha`."""
    rehearsal: float = 0.1
    """Weight of that divergence (paper: forward_kl 0.01 to 0.05, js 0.05 to 0.2)."""

    def __post_init__(self) -> None:
        Dapo.__post_init__(self)
        if not 0 < self.alpha < 1:
            raise ValueError(f"expected alpha in (0, 1), got {self.alpha}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return DAPO's advantages of what the policy sampled, [P, G]; the rest gets 0 and is kept."""
        return origins.advantages(self, rewards, rollouts, progress)

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with means over the rehearsed and over the other rows, each their own."""
        return origins.own_means(Dapo.prepare(self, batches, progress), self.aggregation)

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the divergence on rehearsed rows, DAPO's loss on the others, [B, T]."""
        losses, metrics = Grpo.policy_loss(self, inputs)
        rehearsed = inputs.of_origin("rehearsal")
        if not rehearsed.any():
            return losses, {**metrics, "loss/rehearsal": torch.zeros_like(inputs.new)}
        scored = inputs.mask & rehearsed
        log_u = log_ratio(inputs.new, inputs.extra["stored_logprobs"], scored)
        divergence = f_divergence(self.divergence_of, log_u, self.alpha)
        mixed = torch.where(rehearsed, self.rehearsal * divergence, losses)
        return mixed, {**metrics, "loss/rehearsal": divergence}


def f_divergence(name: str, log_u: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return f(u) of a token by log u = log(policy / stored), never negative, 0 at u = 1."""
    u = log_u.exp()
    if name == "forward_kl":
        return u - log_u - 1
    if name == "js":
        return u * log_u - (u + 1) * (torch.log1p(u) - math.log(2))
    return (((1 - alpha) * log_u).exp() - (1 - alpha) * u - alpha) / (alpha * (alpha - 1))
