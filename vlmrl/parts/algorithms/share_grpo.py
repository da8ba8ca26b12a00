"""Share-GRPO: advantages among the answers to all wordings of a question, and among those to one's own.

Source: Yao et al. 2025, "R1-ShareVL", arXiv 2505.16673, and its code (core_algos): the reward against the
answers to both wordings, over their deviation, plus, for what was written to this very prompt, the same
among such answers alone. The strategy `question_variants` asks the other wording; a group without any is
GRPO's. Differs: its code has each completion twice in the deviation among all, which is 2 % smaller so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vlmrl.algorithms import advantages as filters
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class ShareGrpo(Grpo):
    """GRPO over wordings of a question, for the strategy `question_variants`. Example: ShareGrpo()."""

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return advantages in the whole group plus, of the policy's own, those among themselves, [P, G]."""
        whole = Recipe.advantages(self, rewards, rollouts, progress)
        foreign = torch.tensor(
            [[c.origin == "distortion" for c in group] for group in rollouts.completions],
            dtype=torch.bool,
        ).reshape(rewards.total.shape)
        own = rewards.valid & ~foreign & foreign.any(-1, keepdim=True)
        alone = self.estimate(replace(rewards, valid=own))
        silent = filters.uniform(rewards.total, own)
        return replace(whole, values=whole.values + alone.masked_fill(silent[:, None], 0.0))
