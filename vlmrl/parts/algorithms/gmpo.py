"""GMPO: the geometric mean of a completion's clipped ratios; an outlier among its tokens weighs little.

Source: Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv 2507.20673, eq. 4: the log ratio
of each token is clipped, on the side that its advantage pushes to, to (-0.4, 0.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import Recipe, check_positive


@dataclass(frozen=True, slots=True)
class Gmpo(Recipe):
    """Geometric-mean policy optimisation. Example: Gmpo(clip_high=0.3)."""

    of_wholes: ClassVar[bool] = True

    clip_low: float = 0.4
    """The log ratio of a token is clipped from below at -clip_low."""
    clip_high: float = 0.4
    """The log ratio of a token is clipped from above at clip_high."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_positive(self, "clip_low", "clip_high")

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the completion's ratio times its advantage, on each token, [B, T]."""
        log_ratio = surrogates.log_ratio(inputs.new, inputs.old, inputs.mask)
        good = inputs.advantages > 0
        held = torch.where(
            good, log_ratio.clamp(max=self.clip_high), log_ratio.clamp(min=-self.clip_low)
        )
        mean = held.sum(-1, keepdim=True) / inputs.mask.sum(-1, keepdim=True).clamp(min=1)
        losses = -mean.exp() * inputs.advantages
        below = (log_ratio < -self.clip_low) & (inputs.advantages < 0)
        metrics = {
            "loss/ratio": log_ratio.exp(),
            "loss/clip_low": below.float(),
            "loss/clip_high": ((log_ratio > self.clip_high) & good).float(),
        }
        return losses, metrics

    def log_mismatch(self, inputs: LossInputs) -> torch.Tensor:
        """Return the log of the geometric mean of old / sampling probability, [B, 1]."""
        return surrogates.mean_log_ratio(inputs.old, inputs.sampling, inputs.mask)
