"""T-SPMO: advantages of tokens, by what became of the completions that went on with them.

Source: Lee and Tong 2025, "Token-Efficient RL for LLM Reasoning", arXiv 2504.20834, section 3.2: in
the tree of a group's completions token v after prefix s is worth the mean reward of those through s v
less that of those through s. Tokens at which nothing branches are worth 0, and each pair (s, v) counts
once however many completions share it. Differs: with GRPO's ratio and clip, a mean over all tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import Advantages, Rewards, Rollouts


@dataclass(frozen=True, slots=True)
class TSpmo(Grpo):
    """Token-specific prefix matching optimisation. Example: TSpmo()."""

    reads_completions: ClassVar[bool] = True

    scale: Literal["none"] = "none"
    aggregation: Aggregation = "token"

    def advantages(self, rewards: Rewards, rollouts: Rollouts, progress: float = 0.0) -> Advantages:
        """Return what every token is worth against the others after its prefix, [P, G, T]."""
        plain = Recipe.advantages(self, rewards, rollouts, progress)
        informative = self.keep(rewards, progress)
        sizes = [c.num_tokens for group in rollouts.completions for c in group]
        values = torch.zeros(*rewards.total.shape, max(sizes, default=1))
        for p, group in enumerate(rollouts.completions):
            used = [g for g in range(len(group)) if plain.kept[p, g] and informative[p]]
            worths = branch_values(
                [group[g].token_ids for g in used], [float(rewards.total[p, g]) for g in used]
            )
            for g, worth in zip(used, worths, strict=True):
                values[p, g, : len(worth)] = torch.tensor(worth)
        return replace(plain, values=values)


def branch_values(ids: Sequence[Sequence[int]], rewards: Sequence[float]) -> list[list[float]]:
    """Return for every token of every completion its worth over the completions that share it."""
    node = [0] * len(ids)
    values: list[list[float]] = [[] for _ in ids]
    nodes = 1
    for step in range(max(map(len, ids), default=0)):
        through: dict[int, list[int]] = defaultdict(list)
        for i, own in enumerate(ids):
            if step < len(own):
                through[node[i]].append(i)
        for members in through.values():
            mean = sum(rewards[i] for i in members) / len(members)
            following: dict[int, list[int]] = defaultdict(list)
            for i in members:
                following[ids[i][step]].append(i)
            for same in following.values():
                worth = sum(rewards[i] for i in same) / len(same) - mean
                for i in same:
                    values[i].append(0.0 if len(same) == len(members) else worth / len(same))
                    node[i] = nodes
                nodes += 1
    return values
