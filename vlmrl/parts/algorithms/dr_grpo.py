"""Dr. GRPO: GRPO without its two biases, towards short right answers and towards easy prompts.

Source: Liu et al. 2025, "Understanding R1-Zero-like training", arXiv 2503.20783, section 3.2: no
division by the group's deviation, and a constant instead of each completion's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo


@dataclass(frozen=True, slots=True)
class DrGrpo(Grpo):
    """GRPO done right. The constant is the configured completion limit. Example: DrGrpo()."""

    scale: Literal["std", "batch", "none"] = "none"
    aggregation: Aggregation = "constant"
