"""Dynamic sampling: replace uniform groups by groups of further batches, within a bound (DAPO)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from vlmrl.algorithms.base import Algorithm
from vlmrl.schema import PromptBatch, Rewards, Rollouts

Scored = tuple[Rollouts, Rewards]


def refill(
    algorithm: Algorithm, rollouts: Rollouts, rewards: Rewards, another: Callable[[], Scored]
) -> tuple[Rollouts, Rewards, dict[str, float]]:
    """P groups worth training on, drawn from at most `1 + algorithm.dynamic_sampling_batches` batches.

    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 11. When the bound is reached the step goes on with
    fewer groups: `rollout/groups_short` says how many are missing, `rollout/batches` how many were drawn,
    `rollout/refused_share` which share of all drawn groups was uniform.
    """
    if not algorithm.dynamic_sampling_batches:
        return rollouts, rewards, {}
    wanted = rollouts.shape[0]
    chosen: list[Scored] = []
    drawn = found = good = 0
    while True:
        drawn += 1
        informative = algorithm.keep(rewards).nonzero()[:, 0].tolist()
        good += len(informative)
        kept = informative[: wanted - found]
        chosen.append(_groups(rollouts, rewards, kept))
        found += len(kept)
        cursor = rollouts.batch.cursor
        if found == wanted or drawn > algorithm.dynamic_sampling_batches:
            break
        rollouts, rewards = another()
    metrics = {
        "rollout/batches": float(drawn),
        "rollout/groups_short": float(wanted - found),
        "rollout/refused_share": 1 - good / (drawn * wanted),
    }
    rollouts, rewards = _joined(chosen)
    return replace(rollouts, batch=replace(rollouts.batch, cursor=cursor)), rewards, metrics


def _groups(rollouts: Rollouts, rewards: Rewards, which: list[int]) -> Scored:
    batch = PromptBatch(tuple(rollouts.batch.prompts[p] for p in which), rollouts.batch.cursor)
    return (
        replace(rollouts, batch=batch, completions=tuple(rollouts.completions[p] for p in which)),
        Rewards(
            rewards.total[which], rewards.valid[which], tuple(rewards.verdicts[p] for p in which)
        ),
    )


def _joined(parts: list[Scored]) -> Scored:
    rollouts = [r for r, _ in parts]
    rewards = [w for _, w in parts]
    prompts = tuple(p for r in rollouts for p in r.batch.prompts)
    completions = tuple(c for r in rollouts for c in r.completions)
    return (
        replace(rollouts[-1], batch=PromptBatch(prompts), completions=completions),
        Rewards(
            torch.cat([w.total for w in rewards]),
            torch.cat([w.valid for w in rewards]),
            tuple(v for w in rewards for v in w.verdicts),
        ),
    )
