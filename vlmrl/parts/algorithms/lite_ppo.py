"""Lite PPO: the group's mean, the whole batch's deviation, a mean over tokens; no reference.

Source: Liu et al. 2025, "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
arXiv 2508.08221, section 5. The deviation is unbiased and 1e-4 is added to it, as in GRPO here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo


@dataclass(frozen=True, slots=True)
class LitePpo(Grpo):
    """GRPO whose advantages are scaled by the deviation of all rewards in the batch. Example: LitePpo()."""

    scale: Literal["std", "batch", "none"] = "batch"
    aggregation: Aggregation = "token"
