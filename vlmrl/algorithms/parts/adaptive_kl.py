"""A weight of the divergence that is led to a target.

Source: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", arXiv 1909.08593,
section 2.2, with the horizon of its code, as in TRL's PPO and verl: the weight is multiplied by 1 + e n /
horizon for n completions, e = found / target - 1 cut at plus and minus 0.2.
"""

from __future__ import annotations

import math

__all__ = ["next_weight"]

LARGEST_ERROR = 0.2


def next_weight(kl: float, found: float, target: float, horizon: int, completions: int) -> float:
    """Return the weight after a step whose divergence per token was `found`, if that is a number."""
    if not math.isfinite(found):
        return kl
    error = min(max(found / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return kl * (1 + error * completions / horizon)
