"""GRPO: advantages scaled by the group's deviation, clipped ratio, mean over completions.

Source: Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, eq. 3 and 4; the deviation is unbiased
and 1e-4 is added to it, as in TRL and the R1-V family. Differs: no divergence unless asked for (the
paper's weight is `kl: 0.04`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import Recipe, check_clip_range, clip_metrics


@dataclass(frozen=True, slots=True)
class Grpo(Recipe):
    """Group relative policy optimisation. Example: Grpo(kl=0.04, clip_high=0.28)."""

    clip_low: float = 0.2
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped from above at 1 + clip_high."""
    dual_clip: float | None = None
    """Bound of the ratio where the advantage is negative, e.g. 3; None: no bound."""

    def __post_init__(self) -> None:
        # Zero-argument super() does not work in a slotted dataclass.
        Recipe.__post_init__(self)
        check_clip_range(self.clip_low, self.clip_high)
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"expected dual_clip greater than 1 + clip_high, got {self.dual_clip}")

    def surrogate(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return minus the clipped ratio times the advantage, [B, T] or [B, 1]."""
        ratio = self.ratio(inputs)
        losses = surrogates.clipped(
            ratio, inputs.advantages, self.clip_low, self.clip_high, self.dual_clip
        )
        return losses, clip_metrics(ratio, inputs, self.clip_low, self.clip_high)

    def ratio(self, inputs: LossInputs) -> torch.Tensor:
        """Return what is clipped: new / old probability, [B, T] or [B, 1]."""
        return self.log_ratio(inputs.new, inputs.old, inputs.mask).exp()
