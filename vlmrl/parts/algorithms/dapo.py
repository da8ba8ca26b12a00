"""DAPO: higher upper clip, mean over tokens, dynamic sampling, soft punishment of long completions.

Source: Yu et al. 2025, arXiv 2503.14476, eq. 10 to 13; at most ten batches a step, as in its recipe
in verl. The paper's overlong filter is `scoring.truncated: mask`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from vlmrl.algorithms import advantages
from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Dapo(Grpo):
    """Decoupled clip and dynamic sampling policy optimisation. Example: Dapo(dynamic_sampling_batches=3)."""

    clip_high: float = 0.28
    aggregation: Aggregation = "token"
    dynamic_sampling_batches: int = 9
    overlong_share: float = 0.2
    """Punish completions in this last share of the token limit (paper: 4096 of 20480); 0: off."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if not 0 <= self.overlong_share <= 1:
            raise ValueError(f"expected overlong_share in [0, 1], got {self.overlong_share}")

    def shape(
        self, rewards: Rewards, rollouts: Rollouts, max_tokens: int, progress: float = 0.0
    ) -> Rewards:
        """Return the rewards [P, G] with the punishment of long completions added."""
        if self.overlong_share == 0:
            return rewards
        lengths = advantages.lengths(rollouts, rewards.total)
        penalty = overlong_penalty(lengths, max_tokens, self.overlong_share * max_tokens)
        total = torch.where(rewards.valid, rewards.total + penalty, 0.0)
        return dataclasses.replace(rewards, total=total)


def overlong_penalty(lengths: torch.Tensor, max_tokens: int, cache: float) -> torch.Tensor:
    """Return 0 up to `max_tokens - cache` tokens, then linear to -1 at `max_tokens`, -1 beyond; float32.

    Source: Yu et al. 2025, arXiv 2503.14476, eq. 13.
    """
    return ((max_tokens - cache - lengths) / cache).clamp(-1, 0).float()
