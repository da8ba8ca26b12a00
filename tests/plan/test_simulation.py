"""Large jobs: shares found before, what failures cost, laws, and the same numbers for the same seed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.features.plan.published import Assumptions
from vlmrl.features.plan.times import (
    Failures,
    draw_costs,
    expect_failures,
    simulate_imbalance,
)
from vlmrl.forward.dealing import useful_share

DAYS = 24 * 54


@pytest.mark.parametrize(
    ("groups", "ranks", "share"), [(4, 64, 0.47), (4, 512, 0.38), (64, 64, 0.81)]
)
def test_useful_shares_are_those_of_an_earlier_simulation(
    groups: int, ranks: int, share: float
) -> None:
    """A group's mean length is lognormal with 0.6; the earlier one had 0.76 at 64 groups x 512 ranks, too."""
    shares = []
    for seed in range(6):
        costs = draw_costs(groups * ranks, 8, 400.0, 0.6, 0, seed)
        shares.append(useful_share(costs, [n % ranks for n in range(len(costs))], ranks))
    assert sum(shares) / len(shares) == pytest.approx(share, abs=0.02)


def test_dealing_gives_back_what_imbalance_takes_and_stragglers_take_it_again() -> None:
    found = simulate_imbalance(64, 4, slow_share=0.05, slowness=1.5, draws=2)
    assert found.undealt < 0.65 and found.dealt > 0.9
    assert found.with_stragglers == pytest.approx(found.dealt / 1.5, rel=0.1)
    assert simulate_imbalance(64, 4, seed=3, draws=1) == simulate_imbalance(64, 4, seed=3, draws=1)


def test_one_group_a_rank_cannot_be_dealt() -> None:
    found = simulate_imbalance(64, 1, draws=1)
    assert found.dealt == found.undealt < 0.4


def failures(
    gpus: int, step_s: float, every: int, hours: float = DAYS, **changed: float
) -> Failures:
    return expect_failures(gpus, step_s, every, replace(Assumptions.of(), **changed), hours)


def test_failures_come_as_often_as_on_16384_gpus() -> None:
    assert failures(1024, 120.0, 10).count == pytest.approx(419 / 16, rel=0.01)


def test_without_failures_all_time_is_progress() -> None:
    found = failures(8, 100.0, 10, hours=10, gpu_hours_per_failure=1e12)
    assert found.count == pytest.approx(0, abs=1e-6) and found.lost_steps < 1e-6
    assert found.goodput == pytest.approx(1.0, abs=0.01)


def test_what_is_expected_is_the_mean_of_many_runs() -> None:
    """Failures drawn one by one, each back to the last checkpoint; one in a restart begins it anew."""
    rng, mean, down, step, every = random.Random(0), 50677 / 4096 * 3600, 360.0, 60.0, 100
    end = 40 * DAYS * 3600.0
    now, kept, lost, count = 0.0, 0, 0, 0
    while now < end:
        lasts = rng.expovariate(1 / mean)
        steps = int(lasts // step)
        kept, lost = kept + steps - steps % every, lost + steps % every
        now, count = now + lasts + down, count + 1
        while (again := rng.expovariate(1 / mean)) < down:
            now, count = now + again, count + 1
    found = failures(4096, step, every)
    assert found.count == pytest.approx(count / 40, rel=0.05)
    assert found.lost_steps == pytest.approx(lost / 40, rel=0.05)
    assert found.goodput == pytest.approx(kept * step / end, rel=0.01)


@given(gpus=st.integers(1, 20000), every=st.integers(1, 1_000_000))
def test_progress_is_a_share_and_more_gpus_fail_more(gpus: int, every: int) -> None:
    few, many = (failures(n, 60.0, every, hours=300) for n in (gpus, 10 * gpus))
    assert 0 <= many.goodput <= few.goodput <= 1 and few.lost_steps >= 0
    assert many.count == pytest.approx(10 * few.count)


def test_rare_checkpoints_lose_half_of_what_is_between_them() -> None:
    often, rarely = (failures(4096, 60.0, every) for every in (1, 100))
    assert often.lost_steps == 0 and often.count == rarely.count
    assert rarely.lost_steps / rarely.count == pytest.approx(50, rel=0.25)
