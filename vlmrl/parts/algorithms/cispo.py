"""CISPO: the ratio as a bounded weight without gradient, so that every token keeps a gradient.

Source: MiniMax 2025, "MiniMax-M1", arXiv 2506.13585, eq. 4 and 5, without the lower bound, as there.
The paper names no bound; 5 is that of Khatri et al. 2025, "The Art of Scaling Reinforcement Learning"
(ScaleRL), arXiv 2510.13786, which also has `scale: batch`. The bound is of the ratio itself, as in TRL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe, check_positive, weight_metrics


@dataclass(frozen=True, slots=True)
class Cispo(Recipe):
    """Clipped importance-sampling policy optimisation. Example: Cispo(scale="batch")."""

    aggregation: Aggregation = "token"
    ratio_cap: float = 5.0
    """Bound of new / old probability, the weight of A log-prob."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_positive(self, "ratio_cap")

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return -min(ratio, ratio_cap) A log-prob per token, [B, T], the weight without gradient."""
        log_ratio = surrogates.log_ratio(inputs.new, inputs.old, inputs.mask)
        losses = surrogates.one_sided(inputs.new, log_ratio, inputs.advantages, self.ratio_cap)
        return losses, weight_metrics(log_ratio, inputs, self.ratio_cap)
