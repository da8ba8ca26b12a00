"""Groups are dealt to ranks by their tokens: evenly, and the same on all of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.forward.dealing import plan_homes, useful_share

COSTS = st.lists(st.integers(0, 5000), min_size=1, max_size=24)


@given(costs=COSTS, world=st.integers(1, 9), seed=st.integers(0, 99))
def test_no_plan_is_worse_than_the_present_homes(costs, world, seed):
    rng = random.Random(seed)
    homes = [rng.randrange(world) for _ in costs]
    planned = plan_homes(costs, homes, world)
    assert len(planned) == len(costs) and set(planned) <= set(range(world))
    assert useful_share(costs, planned, world) >= useful_share(costs, homes, world)
    assert plan_homes(costs, homes, world) == planned


@given(costs=COSTS, world=st.integers(1, 9))
def test_the_fullest_rank_has_less_than_twice_what_it_must_have(costs, world):
    homes = [number % world for number in range(len(costs))]
    planned = plan_homes(costs, homes, world)
    fullest = max(
        sum(c for c, h in zip(costs, planned, strict=True) if h == r) for r in range(world)
    )
    assert fullest <= max(2 * max(costs), 2 * sum(costs) / world)


def test_what_is_even_stays_where_it_is():
    homes = [number % 4 for number in range(16)]
    assert plan_homes([1000 + n % 3 for n in range(16)], homes, 4) == homes
    assert plan_homes([0] * 16, homes, 4) == homes


@pytest.mark.parametrize(("groups", "before"), [(4, 0.80), (64, 0.93)])
def test_eight_ranks_are_used_to_nine_tenths(groups, before):
    rng = random.Random(0)
    shares = []
    for _ in range(20):
        homes = [number % 8 for number in range(8 * groups)]
        lengths = [[min(2048, rng.lognormvariate(5.5, 1)) for _ in range(8)] for _ in homes]
        costs = [int(200 + sum(group)) for group in lengths]
        planned = plan_homes(costs, homes, 8)
        shares.append([useful_share(costs, given, 8) for given in (homes, planned)])
    old, new = (sum(column) / len(shares) for column in zip(*shares, strict=True))
    assert old < before + 0.03 and new > 0.95
