"""Rows that the policy did not sample: no part in the statistics of groups, and a mean of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vlmrl.algorithms.advantages import own_denominators
from vlmrl.algorithms.losses import Aggregation
from vlmrl.algorithms.recipes import Recipe
from vlmrl.schema import Advantages, MicroBatch, Rewards, Rollouts, TrainBatch


def advantages(recipe: Recipe, rewards: Rewards, rollouts: Rollouts, progress: float) -> Advantages:
    """Return a recipe's advantages of the policy's completions, [P, G]; the others get 0 and are kept."""
    foreign = torch.tensor(
        [[c.origin != "policy" for c in group] for group in rollouts.completions]
    ).reshape(rewards.total.shape)
    if not foreign.any():
        return Recipe.advantages(recipe, rewards, rollouts, progress)
    own = replace(rewards, valid=rewards.valid & ~foreign)
    own_advantages = Recipe.advantages(recipe, own, rollouts, progress)
    return replace(own_advantages, kept=own_advantages.kept | foreign)


def own_means(batches: Sequence[TrainBatch], aggregation: Aggregation) -> list[TrainBatch]:
    """Return the batches so that the policy's rows and the others are averaged each by themselves."""

    def foreign(micro: MicroBatch) -> torch.Tensor:
        origin = micro.extra.get("origin")
        if origin is None:
            return torch.zeros(len(micro.group), dtype=torch.bool)
        return origin[:, 0] != 0

    return own_denominators(batches, aggregation, foreign)
