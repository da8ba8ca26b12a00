"""On-policy distillation: a teacher grades every token of the policy's own completions.

Source: Lu et al. 2025, "On-Policy Distillation" (thinkingmachines.ai/blog/on-policy-distillation), after
Agarwal et al. 2024 (GKD), arXiv 2306.13649: the advantage of a token is log teacher - log policy, one
sample of minus the reverse divergence KL(policy || teacher) there, without discount, and its loss is
-ratio A. The verifiers' rewards are logged and have no part in it: `teacher_kl` of any other recipe adds a
teacher to rewards. The config names the `teacher`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms import advantages as teacher_term
from vlmrl.algorithms.base import LossInputs, Pass
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Advantages, Rewards, Rollouts, TrainBatch


@dataclass(frozen=True, slots=True)
class OnPolicyDistillation(Recipe):
    """Learning from a teacher's log-probs of what the policy wrote. Example: OnPolicyDistillation()."""

    own_passes: ClassVar[tuple[Pass, ...]] = ("old", "teacher")

    baseline: Literal["none"] = "none"
    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.teacher_kl:
            raise ValueError(
                "teacher_kl adds a teacher to rewards, which have no part here: expected 0, got "
                f"{self.teacher_kl}"
            )

    def keep(self, rewards: Rewards, progress: float = 0.0) -> torch.Tensor:
        """Return that every group has a gradient, bool [P]."""
        return torch.ones(len(rewards.total), dtype=torch.bool)

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return 0 for every completion, [P, G]; `prepare` makes those of the tokens."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        return replace(plain, values=torch.zeros_like(plain.values))

    def prepare(self, batches: Sequence[TrainBatch], progress: float = 0.0) -> Sequence[TrainBatch]:
        """Return the batches with the advantage log teacher - log policy of each token, [B, T]."""
        return Recipe.prepare(self, teacher_term.reward(batches, 1.0), progress)

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -ratio A per token, [B, T]."""
        ratio = self.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
        return -ratio * inputs.advantages, {"loss/ratio": ratio}

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the loss per token, [B, T], with the divergence from the teacher as a metric."""
        losses, metrics = Recipe.policy_loss(self, inputs)
        if "teacher" in inputs.extra:
            metrics = {**metrics, "loss/teacher_kl": teacher_term.gap(inputs)}
        return losses, metrics
