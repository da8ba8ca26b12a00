"""BRPO: comparisons with one completion of a group are the advantages; groups that nearly agree are dropped.

Source: "Writing-Zero", arXiv 2506.00103: the reward, 1 or -1 against a completion of the group drawn by
chance and 0 for that one, is the advantage itself; a group whose rewards add up to more than 0.6 of its
size, to either side, is left out of the update, since the one drawn was among its worst or best. The
bound is from an account of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from vlmrl.algorithms.recipes import Recipe, check_positive
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class Brpo(Grpo):
    """Bootstrapped relative policy optimisation. Example: Brpo(most_agreement=0.6)."""

    baseline: Literal["mean", "leave_one_out", "batch", "none"] = "none"
    scale: Literal["std", "batch", "none"] = "none"
    most_agreement: float = 0.6
    """A group is dropped if the mean of its rewards is further from 0."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        check_positive(self, "most_agreement")

    @property
    def only_uniform_is_silent(self) -> bool:
        """Groups of unlike rewards are dropped, too."""
        return False

    def keep(self, rewards: Rewards, progress: float = 0.0) -> torch.Tensor:
        """Return which groups have a gradient and do not nearly all win or lose, bool [P]."""
        known = torch.where(rewards.valid, rewards.total, 0.0).sum(-1)
        most = self.most_agreement * rewards.valid.sum(-1)
        return Recipe.keep(self, rewards, progress) & (known.abs() <= most + 1e-6)

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return the rewards of the groups that are kept, [P, G]; others take no part in the update."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        return replace(plain, kept=plain.kept & self.keep(rewards, progress)[:, None])
