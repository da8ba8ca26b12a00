"""SAPO: a sigmoid of the ratio in place of the clip; tokens far from the old policy fade out.

Source: Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv 2511.20347, eq. 5 and 6; steepness
1 and 1.05 as in its experiments: steeper where the advantage is negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import Recipe, check_positive


@dataclass(frozen=True, slots=True)
class Sapo(Recipe):
    """Soft adaptive policy optimisation. Example: Sapo(steepness_bad=1.2)."""

    steepness_good: float = 1.0
    """Steepness of the gate where the advantage is positive."""
    steepness_bad: float = 1.05
    """Steepness of the gate elsewhere."""

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_positive(self, "steepness_good", "steepness_bad")

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return minus the gated ratio times the advantage per token, [B, T]."""
        ratio = surrogates.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
        good = inputs.advantages > 0
        steepness = torch.where(good, self.steepness_good, self.steepness_bad)
        losses = surrogates.soft_gated(ratio, inputs.advantages, steepness)
        return losses, {"loss/ratio": ratio}
