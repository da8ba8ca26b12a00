"""The cold start's length: `sft.max_steps` bounds it, its decay included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlmrl.config import SftConfig
from vlmrl.training import sft


def run_stage(config: SftConfig, metric: float = 0.0) -> tuple[sft.Stage, list[float]]:
    """Walk through a cold start without a model; return its end and the lr of every step."""
    stage, rates = sft.Stage(), []
    while not stage.done(config):
        rates.append(stage.lr(config))
        stage, _ = sft.check(replace(stage, step=stage.step + 1), config, lambda: metric)
    return stage, rates


@pytest.mark.parametrize(
    ("max_steps", "decay_steps"), [(1, 25), (3, 25), (25, 25), (26, 25), (60, 25), (4, 0)]
)
def test_the_cold_start_never_exceeds_max_steps(max_steps: int, decay_steps: int) -> None:
    config = SftConfig(max_steps=max_steps, decay_steps=decay_steps, warmup_steps=0)
    stage, rates = run_stage(config)
    assert stage.step == len(rates) == max_steps
    if max_steps > 1 and decay_steps:
        assert rates[-1] == pytest.approx(0.1 * config.lr)  # the decay comes to its end


def test_a_reached_metric_is_followed_by_the_whole_decay() -> None:
    config = SftConfig(
        max_steps=500, decay_steps=25, stop_at=0.5, validate_from=100, validate_every=25
    )
    stage, rates = run_stage(config, metric=0.6)
    assert (stage.stopped_at, stage.step) == (100, 125)
    assert rates[100:] == [config.lr * (1 - 0.9 * min(1.0, n / 25)) for n in range(1, 26)]
