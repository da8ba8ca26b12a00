"""Prioritised advantage distillation: what is drawn of a batch, how often, and what it then weighs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.losses import rewards_of, rollouts_of
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.advantage_sampling import AdvantageSampling
from vlmrl.schema import Advantages
from vlmrl.training.strategy import BatchDraw

RUN: Any = SimpleNamespace()
VALUES = [[0.05, 0.1, -0.3], [0.95, -1.7, 0.6], [0.0, 0.2, 0.9]]


def sampled(strategy: AdvantageSampling, values: torch.Tensor, seed: int = 0) -> Advantages:
    rewards = rewards_of(VALUES)
    kept = torch.ones(3, 3, dtype=torch.bool)
    kept[2, 2] = False  # masked before
    before = Advantages(values, kept, torch.full((3, 3), 2.0))
    draw = BatchDraw(seed, 0, 0, 0.0)
    rollouts = rollouts_of(rewards)
    same, paid, after = strategy.select(rollouts, rewards, before, draw, RUN)
    assert same is rollouts and paid is rewards and torch.equal(after.values, values)
    return after


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_a_completion_counts_as_often_as_slow_code_expects(alpha: float) -> None:
    strategy, total = AdvantageSampling(alpha=alpha), torch.zeros(3, 3)
    draws = 400
    for seed in range(draws):
        after = sampled(strategy, torch.tensor(VALUES), seed)
        times = after.weights / 2.0 * 8 / int(after.kept.sum())
        assert torch.allclose(times, times.round(), atol=1e-4) and float(
            times.sum()
        ) == pytest.approx(8)
        assert torch.equal(times > 0, after.kept)
        total += times
    able = {
        (0, 1): 0.1,
        (0, 2): 0.3,
        (1, 2): 0.6,
        (2, 1): 0.2,
    }  # above 0.05, below 0.95, not masked
    whole = sum(value**alpha for value in able.values())
    for p in range(3):
        for g in range(3):
            expected = 8 * able[p, g] ** alpha / whole if (p, g) in able else 0.0
            assert float(total[p, g]) / draws == pytest.approx(expected, abs=0.25)
    assert after.metrics["advantage_sampling/able"] == 4 / 8


def test_numbers_by_token_count_by_their_mean_and_a_batch_without_any_stays() -> None:
    by_token = torch.tensor(VALUES)[..., None].repeat(1, 1, 4)
    one, other = (
        sampled(AdvantageSampling(), by_token),
        sampled(AdvantageSampling(), by_token[..., 0]),
    )
    assert torch.equal(one.kept, other.kept) and torch.allclose(one.weights, other.weights)
    nothing = sampled(AdvantageSampling(low=5, high=6), torch.tensor(VALUES))
    assert int(nothing.kept.sum()) == 8 and (nothing.weights == 2).all()
    more = sampled(AdvantageSampling(ratio=1.5), torch.tensor(VALUES))
    assert float(more.weights.sum()) == pytest.approx(2.0 * int(more.kept.sum()))


def test_a_step_is_taken(tmp_path: Path) -> None:
    more = ["strategies=[advantage_sampling]", "algorithm=grpo", "engine=hf"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    size = report.advantages.values[report.advantages.kept].abs()
    assert len(size) and (size > 0.05).all() and (size < 0.95).all()
    assert report.metrics["update/skipped"] == 0
    assert 0 < report.metrics["advantage_sampling/able"] <= 1


@pytest.mark.parametrize("options", [{"low": -1}, {"low": 2, "high": 1}, {"ratio": 0}])
def test_a_choice_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("strategy", "advantage_sampling", options)
