"""S-GRPO: the loss of some tokens only, so that little of a long completion moves a small adapter.

Source: Lee and Tong 2025, "Token-Efficient RL for LLM Reasoning", arXiv 2504.20834, section 3.1: the
first `always` tokens of a completion, then each with chance `chance`, at most `most` in all; the mean is
over those. Differs: the defaults are ours, and the draw is by the completion's ids and the progress, so
no cut and no rank changes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts
from vlmrl.system.seeds import seed_of


@dataclass(frozen=True, slots=True)
class SGrpo(Grpo):
    """Stochastic GRPO: token sampling. Example: SGrpo(always=25, chance=0.5, most=100)."""

    reads_completions: ClassVar[bool] = True

    always: int = 25
    """First tokens of a completion that are trained on."""
    chance: float = 0.5
    """Chance of a later token to be trained on."""
    most: int = 100
    """Largest number of tokens of a completion that are trained on."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if not 0 <= self.chance <= 1:
            raise ValueError(f"expected chance in [0, 1], got {self.chance}")
        if self.most < 1:
            raise ValueError(f"expected most of at least 1, got {self.most}")

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return GRPO's advantages, [P, G], and the weights of the tokens that were drawn, [P, G, T]."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        sizes = [c.num_tokens for group in rollouts.completions for c in group]
        weight = torch.zeros(*rewards.total.shape, max(sizes, default=1))
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                drawn = self._draw(completion.token_ids, progress)
                share = len(drawn) / max(drawn.sum(), 1)
                weight[p, g, : len(drawn)] = torch.from_numpy(drawn * share).float()
        return replace(plain, extra={"token_weight": weight})

    def _draw(self, ids: Sequence[int], progress: float) -> np.ndarray:
        """Return which tokens are trained on, bool [T]; at least one."""
        content = zlib.crc32(np.asarray(ids, np.int64).tobytes())
        rng = np.random.default_rng(seed_of(content, round(progress * 2**32)))
        drawn = rng.random(len(ids)) < self.chance
        drawn[: max(self.always, 1)] = True
        return drawn & (drawn.cumsum() <= self.most)
