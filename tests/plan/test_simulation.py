"""Simulations of large jobs: shares found before, laws, and the same numbers for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.features.plan.times import draw_costs, simulate_failures, simulate_imbalance
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


def test_failures_come_as_often_as_on_16384_gpus() -> None:
    counts = [simulate_failures(1024, 120.0, 10, hours=DAYS, seed=seed).count for seed in range(40)]
    assert sum(counts) / 40 == pytest.approx(419 / 16, rel=0.1)
    assert simulate_failures(64, 120.0, 10, hours=DAYS).count <= 6  # one in 33 days


def test_without_failures_all_time_is_progress() -> None:
    found = simulate_failures(8, 100.0, 10, hours=10, gpu_hours_per_failure=1e12)
    assert found.count == found.lost_steps == 0
    assert found.goodput == pytest.approx(1.0, abs=0.01)


@given(gpus=st.integers(1, 20000), seed=st.integers(0, 99), every=st.integers(1, 100))
def test_progress_is_a_share_and_more_gpus_fail_no_less(gpus: int, seed: int, every: int) -> None:
    few, many = (simulate_failures(n, 60.0, every, hours=300, seed=seed) for n in (gpus, 10 * gpus))
    assert 0 <= many.goodput <= 1 and 0 <= few.goodput <= 1
    assert many.count >= few.count


def test_rare_checkpoints_lose_half_of_what_is_between_them() -> None:
    often, rarely = (simulate_failures(4096, 60.0, every, hours=DAYS) for every in (1, 100))
    assert often.lost_steps == 0 and often.count == pytest.approx(rarely.count, rel=0.3)
    assert rarely.lost_steps / rarely.count == pytest.approx(50, rel=0.25)
