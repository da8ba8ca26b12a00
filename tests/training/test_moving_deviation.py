"""EMA-GRPO: the moving deviation of each source against slow code, and a resume that goes on with it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.losses import recipe_of, rewards_of, rollouts_of
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.parts.strategies.moving_deviation import MovingDeviation
from vlmrl.schema import Rewards
from vlmrl.training.strategy import BatchDraw

DRAW = BatchDraw(0, 0, 0, 0.0)
RUN: Any = SimpleNamespace(loader=SimpleNamespace(sources=[SimpleNamespace(name=n) for n in "ab"]))


def slow(
    moments: dict[str, tuple[float, float]], sources: str, groups: list[list[float]], decay: float
) -> list[list[float]]:
    """Return EMA-GRPO's advantages of a batch, and take it into the moments, number by number."""
    for source in set(sources):
        flat = [r for s, group in zip(sources, groups, strict=True) if s == source for r in group]
        mean, square = sum(flat) / len(flat), sum(r * r for r in flat) / len(flat)
        if source in moments:
            old = moments[source]
            mean = decay * old[0] + (1 - decay) * mean
            square = decay * old[1] + (1 - decay) * square
        moments[source] = (mean, square)
    advantages = []
    for source, group in zip(sources, groups, strict=True):
        mean, square = moments[source]
        deviation = math.sqrt(max(square - mean * mean, 1e-6))
        centre = sum(group) / len(group)
        scaled = [(r - centre) / (deviation + 1e-6) for r in group]
        if any(abs(a) > 5 for a in scaled):
            own = math.sqrt(sum((r - centre) ** 2 for r in group) / len(group))
            scaled = [(r - centre) / (own + 1e-6) for r in group]
        advantages.append(scaled)
    return advantages


def test_advantages_are_those_of_slow_code_batch_after_batch() -> None:
    rng, strategy, recipe = random.Random(0), MovingDeviation(decay=0.9), recipe_of("ema_grpo")
    strategy.begin(RUN)
    moments: dict[str, tuple[float, float]] = {}
    bounded = 0
    for batch in range(12):
        sources = "aab" if batch % 3 else "abb"
        groups = [[rng.random() * (0.02 if s == "a" else 2) for _ in range(4)] for s in sources]
        if batch == 8:
            groups[0] = [9.0, 0.0, 0.0, 0.0]  # far from what the source had: the guard
        rewards = rewards_of(groups)
        rollouts, same = strategy.expand(rollouts_of(rewards, list(sources)), rewards, DRAW, RUN)
        assert same is rewards
        found = recipe.advantages(rewards, rollouts).values
        expected = slow(moments, sources, groups, 0.9)
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-4)
        bounded += max(map(abs, expected[0])) < 5 and batch == 8
    assert bounded == 1
    assert strategy.state["batches"].tolist() == [12, 12]


def test_what_is_not_valid_counts_nowhere_and_an_unknown_source_is_scaled_by_its_group() -> None:
    strategy, recipe = MovingDeviation(), recipe_of("ema_grpo")
    strategy.begin(RUN)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    rewards = Rewards(torch.tensor([[1.0, 0.0, 7.0], [3.0, 4.0, 5.0]]), valid, ())
    rollouts, _ = strategy.expand(rollouts_of(rewards, ["a", "b"]), rewards, DRAW, RUN)
    assert strategy.state["means"].tolist() == [0.5, 0] and strategy.state["batches"].tolist() == [
        1,
        0,
    ]
    assert strategy.metrics(rollouts, rewards) == {"moving_deviation/mean": pytest.approx(0.5)}
    for seen in (rollouts, rollouts_of(rewards)):  # 0.5 is the group's own deviation, too
        found = recipe.advantages(rewards, seen).values
        expected = torch.tensor([[1.0, -1, 0], [0, 0, 0]])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_run_with_moving_deviations_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, *more: str) -> Any:
        short = (
            "sft=null",
            "evaluation=null",
            "algorithm=ema_grpo",
            "strategies=[moving_deviation]",
        )
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(2))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert "trainer/strategies.safetensors" in final_state(tmp_path / "run")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
