"""PF-PPO: which ranks of a group are drawn, how often, and that a step is taken with what is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.losses import rewards_of, rollouts_of
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.rank_sampling import RankSampling
from vlmrl.schema import Advantages
from vlmrl.training.strategy import BatchDraw

RUN: Any = SimpleNamespace()
TOTALS = [[0.5, 0.9, 0.1, 0.7], [1.0, 0.0, 1.0, 0.0], [0.3, 0.3, 0.3, 0.3]]
MASKED = {(0, 1), (2, 0), (2, 1), (2, 3)}


def weights_of(best: float, middle: float, worst: float) -> dict[tuple[int, int], float]:
    """The weights of the published code: a sort by rewards, its last the best and its first the worst."""
    weights = {}
    for p, row in enumerate(TOTALS):
        known = sorted((t, g) for g, t in enumerate(row) if (p, g) not in MASKED)
        for _, g in known:
            weights[p, g] = middle
        weights[p, known[0][1]] = worst
        weights[p, known[-1][1]] = best
    return weights


@pytest.mark.parametrize("weights", [(1.0, 0.0, 1.0), (0.4, 0.1, 0.1), (1.0, 0.0, 0.0)])
def test_a_completion_is_drawn_as_often_as_the_published_code_draws_it(
    weights: tuple[float, float, float],
) -> None:
    rewards = rewards_of(TOTALS)
    kept = torch.ones(3, 4, dtype=torch.bool)
    for place in MASKED:
        kept[place] = False
    strategy, expected = RankSampling(*weights), weights_of(*weights)
    count, draws, drawn = 12 - len(MASKED), 400, Counter[tuple[int, int]]()
    for seed in range(draws):
        before = Advantages(rewards.total.clone(), kept, torch.full((3, 4), 2.0))
        state = (rollouts_of(rewards), rewards, before)
        _, paid, after = strategy.select(*state, BatchDraw(seed, 0, 0, 0.0), RUN)
        assert paid is rewards and torch.equal(after.values, before.values)
        times = after.weights / 2.0 * count / int(after.kept.sum())
        assert float(times.sum()) == pytest.approx(count) and torch.equal(times > 0, after.kept)
        for p in range(3):
            for g in range(4):
                drawn[p, g] += round(float(times[p, g]))
    whole = sum(expected.values())
    for p in range(3):
        for g in range(4):
            share = count * expected.get((p, g), 0.0) / whole
            assert drawn[p, g] / draws == pytest.approx(share, abs=0.25)
            assert share or not drawn[p, g]


def test_a_batch_without_anything_kept_stays_and_a_step_is_taken(tmp_path: Path) -> None:
    rewards = rewards_of(TOTALS)
    none = Advantages(rewards.total, torch.zeros(3, 4, dtype=torch.bool), torch.ones(3, 4))
    state = (rollouts_of(rewards), rewards, none)
    assert RankSampling().select(*state, BatchDraw(0, 0, 0, 0.0), RUN)[2] is none
    more = ["strategies=[rank_sampling]", "algorithm=grpo", "engine=hf", "rollout.group_size=5"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    assert 0 < int(report.advantages.kept.sum()) <= 6 and report.metrics["update/skipped"] == 0
    assert (report.advantages.kept.sum(-1) <= 2).all()


@pytest.mark.parametrize("options", [{"best": -1}, {"best": 0, "worst": 0}])
def test_a_choice_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="expected weights"):
        plugins.build("strategy", "rank_sampling", options)
