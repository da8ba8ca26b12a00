"""GSPO: one ratio a completion, the geometric mean of its tokens' ratios, and a narrow clip.

Source: Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, eq. 5 and 7; clip
3e-4 and 4e-4 as in its section 5.1. `correction` is by the geometric mean, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.parts.algorithms.grpo import Grpo


@dataclass(frozen=True, slots=True)
class Gspo(Grpo):
    """Group sequence policy optimisation. Example: Gspo(clip_high=5e-4)."""

    of_wholes: ClassVar[bool] = True

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def log_ratio(self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the log of the geometric mean of new / old probability, [B, 1]."""
        return surrogates.mean_log_ratio(new, old, mask)
