"""ODSW: advantages weighed by the pass rate of the prompt, for easy, medium and hard ones in turn.

Source: Yuan et al. 2025, "VL-Cogito", arXiv 2507.22607, section 3.2, and its code (ray_trainer).
With pass rate p: easy counts sin(pi p) up to a half and 1 above; medium sin(pi p); hard 1 up to a
half and sin(pi p) above. Differs: the three stages are thirds of one run, there three runs with data of
their own; right is a reward above `correct_above`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Odsw(Grpo):
    """Online difficulty soft weighting of VL-Cogito. Example: Odsw(medium_from=0.2, hard_from=0.5)."""

    correct_above: float = 0.5
    """A completion is right if its reward is larger."""
    medium_from: float = 1 / 3
    """Share of training from which medium prompts count most; easy ones before."""
    hard_from: float = 2 / 3
    """Share of training from which hard prompts count most."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if self.medium_from > self.hard_from:
            raise ValueError(
                f"expected medium_from of at most hard_from, got {self.medium_from} and {self.hard_from}"
            )

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages times the weight of their prompt, [P, G]."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        rate = filters.pass_rate(filters.right(rewards, self.correct_above), rewards.valid)
        return replace(plain, values=plain.values * self.weight(rate, progress))

    def weight(self, rate: torch.Tensor, progress: float) -> torch.Tensor:
        """Return the weight of prompts with these pass rates, in [0, 1]."""
        wave = (math.pi * rate).sin()
        if progress >= self.hard_from:
            return torch.where(rate > 0.5, wave, torch.where(rate > 0, 1.0, 0.25))
        if progress >= self.medium_from:
            return wave
        return torch.where(rate > 0.5, 1.0, wave)
