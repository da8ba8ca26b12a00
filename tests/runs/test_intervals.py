"""Intervals: exact for shares, wider for few clusters, and none where rows are too few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from vlmrl.benchmarking.aggregates import Rows, estimate
from vlmrl.benchmarking.scoring import Figure, RowScore
from vlmrl.features.benchmarks.comparison import exact_difference
from vlmrl.features.benchmarks.tables import say_figure
from vlmrl.runs.intervals import mean_interval, percentiles, proportion_interval


@given(st.integers(1, 300), st.data())
def test_a_share_of_rows_of_their_own_has_the_interval_of_clopper_and_pearson(count, data) -> None:
    right = data.draw(st.integers(0, count))
    values = [[1.0]] * right + [[0.0]] * (count - right)
    wanted = binomtest(right, count).proportion_ci(method="exact")
    assert mean_interval(values, 10) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_clusters_whose_rows_are_alike_are_worth_a_row_each_and_no_more_than_their_rows() -> None:
    alike = proportion_interval(np.array([3.0, 0, 3, 0, 3, 0]), np.full(6, 3.0))
    mixed = proportion_interval(np.array([2.0, 1, 2, 1, 2, 1]), np.full(6, 3.0))
    rows = proportion_interval(np.array([1.0, 0] * 9), np.ones(18))
    assert alike[1] - alike[0] > mixed[1] - mixed[0] > rows[1] - rows[0]
    none = proportion_interval(np.zeros(6), np.full(6, 3.0))
    assert none == pytest.approx((0.0, 1 - 0.025 ** (1 / 6)))


def test_percentiles_of_few_clusters_lie_further_out() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    plain = np.quantile(values, [0.025, 0.975])
    assert percentiles(values, 10_000) == pytest.approx(plain, abs=0.01)
    assert percentiles(values, 6)[1] == pytest.approx(2.5706 * np.sqrt(6 / 5), abs=0.06)


def test_one_cluster_has_no_interval_and_a_row_of_a_share_nearly_all() -> None:
    def rows(scores: list[float]) -> Rows:
        words = [""] * len(scores)
        return Rows(np.array(scores), words, words, words)

    value, low, high = estimate("mean", rows([0.5, 0.25]), ["a", "a"])
    assert (value, low, high) == (0.375, None, None)
    assert say_figure(Figure(value, low, high, 2)) == "0.375 [too few rows]"
    assert estimate("mean", rows([1.0]), ["a"]) == pytest.approx((1.0, 0.025, 1.0))
    _, low, high = estimate("mean_of_groups", rows([0.0] * 6), list("abcdef"))
    assert low == 0 and high == pytest.approx(0.459, abs=1e-3)


def row(index: int, score: float) -> RowScore:
    name = str(index)
    return RowScore(index, name, name, {}, None, score, True, "stop", "", "", "", None, "", "")


@given(st.integers(0, 12), st.integers(0, 12))
def test_few_rows_that_differ_are_a_difference_just_if_the_sign_test_says_so(won, lost) -> None:
    outcomes = [(0.0, 1.0)] * won + [(1.0, 0.0)] * lost + [(1.0, 1.0)] * 100
    first, second = ([row(i, pair[arm]) for i, pair in enumerate(outcomes)] for arm in (0, 1))
    exact = exact_difference(first, second, "strict")
    assert exact is not None
    *_, value, low, high = exact
    assert low <= value <= high and value == pytest.approx((won - lost) / len(outcomes))
    significant = won + lost > 0 and binomtest(won, won + lost).pvalue < 0.05
    assert (low > 0 or high < 0) == significant
