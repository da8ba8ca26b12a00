"""PLCC and SRCC equal scipy's, their intervals cover the truth, and silence pays less than any guess."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from vlmrl.benchmarking.aggregates import Pair, Rows, estimate, statistic_of

THEIRS = {"plcc": pearsonr, "srcc": spearmanr}


def rows(pairs: list[Pair | None]) -> Rows:
    none = [""] * len(pairs)
    return Rows(np.zeros(len(pairs)), none, none, none, pairs)


def value(aggregate: str, pairs: list[Pair | None]) -> float:
    return estimate(aggregate, rows(pairs), [str(i) for i in range(len(pairs))], resamples=2)[0]


@pytest.mark.parametrize("aggregate", sorted(THEIRS))
def test_a_correlation_is_scipy_s_ties_and_repeated_rows_included(aggregate: str) -> None:
    draw = np.random.default_rng(0)
    for size in (3, 10, 200):
        true = draw.normal(3, 1, size).round(1)
        stated = (true + draw.normal(0, 1, size)).round(0)
        pairs: list[Pair | None] = list(zip(stated.tolist(), true.tolist(), strict=True))
        assert value(aggregate, pairs) == pytest.approx(THEIRS[aggregate](stated, true)[0])
        statistic, count = statistic_of(aggregate, rows(pairs), [str(i) for i in range(size)])
        times = draw.integers(0, 3, (5, count)).astype(float)
        order = np.argsort(np.array([str(i) for i in range(size)]), kind="stable")
        for found, often in zip(statistic(times), times.astype(int), strict=True):
            picked = np.repeat(order, often)
            with np.errstate(invalid="ignore"):
                wanted = THEIRS[aggregate](stated[picked], true[picked])[0] if size > 3 else found
            assert found == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("aggregate", sorted(THEIRS))
def test_a_constant_pays_nothing_and_silence_less(aggregate: str) -> None:
    true = [1.0, 2.0, 3.5, 4.0, 5.0]
    assert value(aggregate, [(3.0, one) for one in true]) == 0
    assert value(aggregate, [(1e308, one) for one in true]) == 0
    assert value(aggregate, [None, None]) == 0
    assert value(aggregate, [(None, one) for one in true]) < -0.8
    guesses: list[Pair | None] = [(one, one) for one in true[:-1]]
    assert value(aggregate, [*guesses, (3.0, 5.0)]) > value(aggregate, [*guesses, (None, 5.0)])
    assert value(aggregate, [*guesses, None]) == pytest.approx(1)  # left out


RHO = 0.6
TRUE = {"plcc": RHO, "srcc": 6 / math.pi * math.asin(RHO / 2)}
"""Both of a bivariate normal distribution with correlation `RHO`."""


def coverage(aggregate: str, sets: int, resamples: int) -> float:
    """Share of data sets, 150 clusters of two rows that are alike, whose interval holds the truth."""
    draw, inside = np.random.default_rng(0), 0
    clusters = [str(i // 2) for i in range(300)]
    for seed in range(sets):
        shared = np.repeat(draw.normal(size=(2, 150)), 2, axis=1)
        a, b = (shared + draw.normal(size=(2, 300))) / math.sqrt(2)
        stated = RHO * a + math.sqrt(1 - RHO**2) * b
        pairs: list[Pair | None] = list(zip(stated.tolist(), a.tolist(), strict=True))
        _, low, high = estimate(aggregate, rows(pairs), clusters, resamples=resamples, seed=seed)
        inside += low <= TRUE[aggregate] <= high
    return inside / sets


@pytest.mark.parametrize("aggregate", sorted(THEIRS))
def test_intervals_cover_the_correlation(aggregate: str) -> None:
    # 100 draws: 0.95 within three standard errors
    assert 0.885 <= coverage(aggregate, 100, 200) <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("aggregate", sorted(THEIRS))
def test_intervals_cover_93_to_97_per_cent(aggregate: str) -> None:
    assert 0.93 <= coverage(aggregate, 2000, 1000) <= 0.97
