"""Weights in the loss that each step leads to a target: that of the divergence, and that of the entropy.

What leads them is a mapping from options of the algorithm to their values, and the entropy of the step
before by the name ENTROPY; it is a part of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from vlmrl.algorithms.base import Algorithm
from vlmrl.algorithms.losses import next_bonus, next_weight

ENTROPY = "entropy"
LED = ("kl", "entropy_bonus", ENTROPY)


def follow(algorithm: Algorithm, led: Mapping[str, float]) -> Algorithm:
    """Return the algorithm with the weights that are led."""
    values = {option: led[option] for option in algorithm.targets if option in led}
    return replace(cast(Any, algorithm), **values) if values else algorithm


def acting(algorithm: Algorithm, led: Mapping[str, float]) -> Algorithm:
    """Return the algorithm of an update: a led bonus acts where the entropy was at its target or below."""
    if algorithm.entropy_target is None or led.get(ENTROPY, math.inf) <= algorithm.entropy_target:
        return algorithm
    return replace(cast(Any, algorithm), entropy_bonus=0.0)


def lead(
    algorithm: Algorithm, led: Mapping[str, float], update: dict[str, float], completions: int
) -> Mapping[str, float]:
    """Return what leads the next step, and report in `update` the weights of this one.

    A step without a number, as one without tokens, changes nothing.
    """
    if algorithm.kl_target is not None:
        update["update/kl_weight"] = algorithm.kl
        seen = update.get("loss/kl", algorithm.kl_target)
        target, horizon = algorithm.kl_target, algorithm.kl_horizon
        led = {**led, "kl": next_weight(algorithm.kl, seen, target, horizon, completions)}
    if algorithm.entropy_target is not None:
        update["update/entropy_weight"] = algorithm.entropy_bonus
        bonus, entropy = algorithm.entropy_bonus, update.get("rollout/entropy", math.nan)
        if math.isfinite(entropy):
            bonus = next_bonus(bonus, entropy, algorithm.entropy_target, algorithm.entropy_step)
            led = {**led, "entropy_bonus": bonus, ENTROPY: entropy}
    return led
