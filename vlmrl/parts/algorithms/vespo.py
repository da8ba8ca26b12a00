"""VESPO: A log-prob times a smooth weight of the whole completion's ratio, 1 on-policy, 0 far from it.

Source: "Variational Sequence-Level Soft Policy Optimization", arXiv 2602.10693, section 3.4: the weight
w^k exp(k' (1 - w)) of the ratio w, with (k, k') = (2, 3) where the advantage is positive and (3, 2)
elsewhere. `correction` is no factor of the loss, as in other recipes, but of w: the product over tokens
of their weights, as in TRL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe

LOWEST = 1e-8
"""Ratios below this one count as this one."""


@dataclass(frozen=True, slots=True)
class Vespo(Recipe):
    """Variational sequence-level soft policy optimisation. Example: Vespo(decay_good=2.0)."""

    of_wholes: ClassVar[bool] = True

    aggregation: Aggregation = "token"
    power_good: float = 2.0
    """Power of the ratio where the advantage is at least 0."""
    decay_good: float = 3.0
    """Decay with the ratio where the advantage is at least 0."""
    power_bad: float = 3.0
    """Power of the ratio where the advantage is negative."""
    decay_bad: float = 2.0
    """Decay with the ratio where the advantage is negative."""

    def corrected(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return `surrogate`, in whose ratio the correction is."""
        return self.surrogate(inputs)

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -weight A log-prob per token, [B, T], the completion's weight without gradient.

        The weight is that of new / sampling probability, old / sampling bounded by `correction`.
        """
        correction = self.importance(self.mismatch(inputs)).log().clamp(min=math.log(LOWEST))
        if self.correction_level != "sequence":
            correction = torch.where(inputs.mask, correction, 0.0).sum(-1, keepdim=True)
        log_ratio = surrogates.sequence_log_ratio(inputs.new, inputs.old, inputs.mask).detach()
        bounded = (log_ratio + correction).clamp(math.log(LOWEST), surrogates.LOG_BOUND)
        good = inputs.advantages >= 0
        power = torch.where(good, self.power_good, self.power_bad)
        decay = torch.where(good, self.decay_good, self.decay_bad)
        weight = (decay + power * bounded - decay * bounded.exp()).exp()
        losses = surrogates.reinforce(inputs.new, inputs.advantages) * weight
        return losses, {"loss/ratio": log_ratio.exp().expand_as(inputs.new)}
