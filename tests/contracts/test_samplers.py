"""What must hold of every sampler: draws of real rows, exact resume, nothing but the seed is random."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.data.loader import DrawPlan
from vlmrl.data.sampler import AdaptiveSampler, Sampler, SourceRows
from vlmrl.runs import metrics

KIND = "sampler"
APART = True
SUBSETS = {
    "part": lambda cls: True,
    "plain": lambda cls: not issubclass(cls, AdaptiveSampler),
    "adaptive": lambda cls: issubclass(cls, AdaptiveSampler),
}
SIZE, LAG = 4, 3


def sources() -> list[SourceRows]:
    """Three sources of 40, 1 and 23 rows, with difficulties from 0 to 100."""

    def column(count: int, name: str) -> np.ndarray:
        return (np.arange(count) * 37 % 101).astype(np.float32)

    return [
        SourceRows(f"s{i}", count, 1.0 + i, lambda name, count=count: column(count, name))
        for i, count in enumerate((40, 1, 23))
    ]


@pytest.fixture
def options(loaded: Any, tmp_path: Path) -> dict[str, Any]:
    return dict(loaded.write_example(tmp_path))


def plan_of(part: str, options: dict[str, Any], seed: int = 0) -> DrawPlan:
    return DrawPlan(plugins.build("sampler", part, options), sources(), seed, SIZE, LAG)


def run(plan: DrawPlan, begin: int, end: int) -> list[int]:
    """Draw and learn the batches from `begin` to `end`; the reward of a row is a function of it."""
    stream = plan.stream(begin * SIZE, wait=False)
    found: list[int] = []
    for batch in range(begin, end):
        rows = list(itertools.islice(stream, SIZE))
        found += rows
        draws = [plan.place(row) for row in rows]
        if plan.adapts:
            plan.note(batch, SIZE, draws)
        rewards = [None if row % 7 == 3 else row % 5 / 4 for row in rows]
        for name, value in plan.learn(draws, rewards).items():
            assert name.startswith("sampler/") and isinstance(value, float)
            assert metrics.describe(name), f"say in `curves` what {name!r} is"
    return found


def test_it_is_a_sampler_that_draws_real_rows(
    part: str, loaded: Any, options: dict[str, Any]
) -> None:
    require(issubclass(loaded, Sampler), part, "derive it from vlmrl.data.sampler.Sampler")
    rows = run(plan_of(part, options), 0, 40)
    wrong = [row for row in rows if not 0 <= row < 64]
    require(not wrong, part, f"draw rows from 0 to {63}, got {wrong[:3]}")


def test_the_seed_alone_makes_it_random(part: str, options: dict[str, Any]) -> None:
    same = run(plan_of(part, options, 3), 0, 20) == run(plan_of(part, options, 3), 0, 20)
    require(same, part, "draw the same rows again for the same seed")


@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_it_goes_on_where_it_was_cut(part: str, options: dict[str, Any], cut: int) -> None:
    whole = run(plan_of(part, options), 0, cut + 12)
    before = plan_of(part, options)
    assert run(before, 0, cut) == whole[: cut * SIZE]
    scalars, arrays = copy.deepcopy((before.scalars, before.arrays))
    after = plan_of(part, options)
    after.restore(scalars, arrays)
    goes_on = run(after, cut, cut + 12) == whole[cut * SIZE :]
    require(goes_on, part, "keep all that it learns in state.arrays and state.scalars")


def test_draws_depend_on_their_number_alone(plain: str, tmp_path: Path) -> None:
    options = dict(plugins.load("sampler", plain).write_example(tmp_path))
    sampler = plugins.build("sampler", plain, options)
    state = sampler.begin(sources(), 1)
    whole = list(itertools.islice(sampler.draws(state, 0), 200))
    for number in (1, 63, 64, 150):
        rest = list(itertools.islice(sampler.draws(state, number), 200 - number))
        require(rest == whole[number:], plain, f"draws(state, {number}) must begin at that draw")


def test_chosen_rows_differ_and_avoided_ones_come_last(adaptive: str, tmp_path: Path) -> None:
    options = dict(plugins.load("sampler", adaptive).write_example(tmp_path))
    sampler = plugins.build("sampler", adaptive, options)
    state = sampler.begin(sources(), 1)
    avoid = np.arange(0, 64, 2)
    rows = sampler.choose(state, 0, 48, avoid)
    require(len(set(rows.tolist())) == len(rows) <= 48, adaptive, "choose different rows")
    late = np.isin(rows, avoid)
    require((np.diff(late.astype(int)) >= 0).all(), adaptive, "put rows to avoid last")
    require(late.sum() <= 16, adaptive, "choose rows to avoid only if there are no others")
    everything = sampler.choose(state, 0, 100, avoid)
    require(len(everything) == 64, adaptive, "choose every row before giving fewer than asked for")
