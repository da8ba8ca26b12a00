"""Samplers: published numbers, exact choice among many rows, the laws of the loader with feedback."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.loaders import Files, Meeting, prompt
from vlmrl import plugins
from vlmrl.config import load
from vlmrl.data.loader import DrawnRow, DrawPlan, Loader
from vlmrl.data.sampler import SamplerState, SeenRewards, SourceRows
from vlmrl.data.source import Source, mean_rewards, token_diversities
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.schema import Completion, Frame, Parsed, PromptBatch, Rewards, Rollouts, Sample, Truth

NONE = np.empty(0, np.int64)


def begin(sampler: Any, values: np.ndarray, seed: int = 0) -> SamplerState:
    """The state of a sampler over one source whose every column has these values."""
    rows = SourceRows("s", len(values), 1.0, lambda name: values.astype(np.float32))
    return sampler.begin([rows], seed)


def seen(rows: Sequence[int], rewards: Sequence[float]) -> SeenRewards:
    return SeenRewards(np.array(rows, np.int64), np.array(rewards, np.float64))


# --------------------------------------------------------------------------------- published numbers


def test_adarft_moves_its_target_as_published() -> None:
    sampler = plugins.build("sampler", "adarft", {"difficulty": "level"})
    state = begin(sampler, np.arange(101.0))
    sampler.learn(state, seen([0, 1], [1.0, 0.5]))
    assert state.scalars["target"] == pytest.approx(23.106, abs=1e-3)
    assert sampler.choose(state, 0, 4, NONE).tolist() == [23, 24, 22, 25]
    sampler.learn(state, seen([2], [0.0]))
    assert state.scalars["target"] == 0.0  # never below the lowest
    sampler.learn(state, seen([], []))
    assert state.scalars["target"] == 0.0


@pytest.mark.parametrize(("lag", "useful"), [(1, 1.0), (4, 0.5)])
def test_adarft_finds_the_ability_where_rewards_come_at_once(lag: int, useful: float) -> None:
    """A policy that solves a row of difficulty d with probability 1 / (1 + exp((d - 50) / 10))."""
    settings = load("recipes/adarft").data.sampler
    sampler = plugins.build("sampler", settings.name, settings.options)
    state = begin(sampler, np.linspace(0, 100, 3000))
    means: list[float] = []
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in range(60):
        rows = sampler.choose(state, batch, 128, NONE)
        rewards = 1 / (1 + np.exp((state.fixed["difficulty"][rows] - 50) / 10))
        means.append(float(rewards.mean()))
        waiting.append((rows, rewards))
        if len(waiting) >= lag:
            sampler.learn(state, seen(*map(list, waiting.pop(0))))
    share = np.mean([0.1 < mean < 0.9 for mean in means[30:]])
    assert (share == useful) if lag == settings.lag else (share <= useful)


def test_cdas_moves_difficulty_and_competence_as_published() -> None:
    sampler = plugins.build("sampler", "cdas")
    state = begin(sampler, np.zeros(10))
    sampler.learn(state, seen([3], [0.25]))
    assert state.arrays["difficulty"][3] == 0.125
    assert state.scalars["competence"] == pytest.approx(-0.0125)
    sampler.learn(state, seen([3], [1.0]))
    short = 1 / (1 + math.exp(0.125 + 0.0125)) - 1
    assert state.arrays["difficulty"][3] == pytest.approx(2 / 3 * 0.125 + short / 3)


def test_cdas_takes_half_from_each_side_and_fills_up_from_the_other() -> None:
    sampler = plugins.build("sampler", "cdas")
    state = begin(sampler, np.zeros(8))
    state.arrays["difficulty"][:] = [-3, -2, -1, 0, 1, 2, 3, 4]
    state.scalars["competence"] = 0.5
    assert sampler.choose(state, 0, 4, NONE).tolist() == [3, 4, 2, 5]
    state.scalars["competence"] = -2.5
    assert sampler.choose(state, 0, 4, NONE).tolist() == [0, 1, 2, 3]
    assert sampler.choose(state, 0, 8, np.array([1, 2])).tolist()[-2:] == [1, 2]


def test_prioritised_draws_by_one_minus_the_success_rate() -> None:
    sampler = plugins.build("sampler", "prioritised", {"least_weight": 0.1})
    state = begin(sampler, np.zeros(4))
    for _ in range(2):
        sampler.learn(state, seen([1, 2, 3], [0.25, 0.5, 1.0]))
    assert state.arrays["success"].tolist() == [0.0, 0.25, 0.5, 1.0]
    first = Counter(int(sampler.choose(state, batch, 1, NONE)[0]) for batch in range(4000))
    weights = np.array([1, 0.75, 0.5, 0.1])
    assert [first[row] / 4000 for row in range(4)] == pytest.approx(weights / 2.35, abs=0.035)


def test_prioritised_drops_solved_rows_while_others_are_left() -> None:
    sampler = plugins.build("sampler", "prioritised", {"least_weight": 1.0, "drop_at": 0.9})
    state = begin(sampler, np.zeros(5))
    sampler.learn(state, seen([0, 1, 2], [0.9, 1.0, 0.89]))
    drawn = Counter(row for b in range(3000) for row in sampler.choose(state, b, 1, NONE).tolist())
    assert {row: count / 3000 for row, count in drawn.items()} == pytest.approx(
        {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}, abs=0.03
    )
    assert {*sampler.choose(state, 0, 5, NONE).tolist()[3:]} == {0, 1}
    assert sampler.metrics(state, np.array([2]))["sampler/dropped"] == 0.4


def test_variance_draws_a_share_by_score_and_the_rest_alike() -> None:
    options = {"share": 0.5, "variance": 0.8, "diversity": 0.2}
    sampler = plugins.build("sampler", "variance", options)
    state = begin(sampler, np.zeros(5))
    rates, shares = [0.0, 0.25, 0.5, 1.5], [0.5, 1.0, 0.25, 0.0]
    sampler.learn(state, replace(seen([0, 1, 2, 3], rates), diversity=np.array(shares)))
    expected = [0.1, 0.8 * 0.25 * 0.75 + 0.2, 0.8 * 0.25 + 0.05, 0.0, 0.8 / 4 + 0.2]
    assert state.arrays["score"].tolist() == pytest.approx(expected)
    first, second = Counter[int](), Counter[int]()
    for batch in range(6000):  # of two rows the first is drawn alike, the second by score
        one, two = sampler.choose(state, batch, 2, NONE).tolist()
        first[one] += 1
        second[two] += 1
    assert [first[row] / 6000 for row in range(5)] == pytest.approx([0.2] * 5, abs=0.02)
    slow = [0.0] * 5
    for taken in range(5):
        left = sum(score for row, score in enumerate(expected) if row != taken)
        for row, score in enumerate(expected):
            slow[row] += 0.2 * score / left * (row != taken)
    assert [second[row] / 6000 for row in range(5)] == pytest.approx(slow, abs=0.02)
    assert sampler.choose(state, 0, 5, np.array([4, 1])).tolist()[3:] in ([4, 1], [1, 4])
    assert sampler.metrics(state, np.array([0, 3]))["sampler/score"] == pytest.approx(0.05)
    assert sampler.reads_completions and not plugins.build("sampler", "variance").reads_completions


@pytest.mark.parametrize(("share", "scored"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_variance_spreads_what_is_drawn_by_score(share: float, scored: int) -> None:
    sampler = plugins.build("sampler", "variance", {"share": share})
    state = begin(sampler, np.zeros(1000))
    varied = list(range(100, 120))
    sampler.learn(state, seen(range(1000), [0.5 if row in varied else 0.0 for row in range(1000)]))
    rows = [sampler.choose(state, batch, 16, NONE)[:8] for batch in range(50)]
    found = np.mean([np.isin(chosen, varied).sum() for chosen in rows])
    assert found == pytest.approx(scored + (8 - scored) * 0.02, abs=0.25)


def test_the_diversity_of_completions_is_that_of_slow_code() -> None:
    def of(*texts: str) -> float:
        parsed = Parsed(None, None, "none", False, 0.0)
        group = [Completion(t, parsed, Frame(), token_ids=tuple(map(ord, t))) for t in texts]
        strange = replace(group[0], token_ids=(1, 2, 3, 4)).with_origin("hint")
        asked = prompt(Sample("0", "s", ("?",), Truth()), [])
        batch = PromptBatch((replace(asked, place=(0, 0)), replace(asked, place=None)))
        (share,) = token_diversities(Rollouts(batch, ((*group, strange), tuple(group))))
        return share

    assert of("abcd", "bcde") == 3 / 4  # abc bcd, bcd cde
    assert of("aaaa", "aa", "") == 1 / 2
    assert of("", "ab") == 0


@pytest.mark.parametrize("options", [{"share": 2}, {"variance": 0}, {"diversity": -1}])
def test_scores_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("sampler", "variance", options)


# ----------------------------------------------------------------------------------------- many rows


def test_retrospective_draws_earlier_rows_by_their_difficulty_and_its_own_in_turn() -> None:
    """Lengths 0 to 39 in three stages, against draws one by one by 1 / the mean of the rewards."""
    options = {"column": "length", "bounds": [9, 29], "begins": [2, 5], "share": 0.5}
    sampler = plugins.build("sampler", "retrospective", options)
    state = begin(sampler, np.arange(40.0))
    for batch in range(2):  # nothing is earlier: all of the stage, each as often as the others
        rows = sampler.choose(state, batch, 5, NONE)
        assert (rows < 10).all()
        found = sampler.metrics(state, rows)
        assert (found["sampler/stage"], found["sampler/earlier"]) == (0.0, 0.0)
        sampler.learn(state, seen(rows.tolist(), [float(row % 5) / 4 for row in rows]))
    assert (
        state.arrays["visits"][:10].tolist() == [1] * 10 and not state.arrays["visits"][10:].any()
    )
    means = [max(0.05, row % 5 / 4) for row in range(10)]
    drawn: Counter[int] = Counter()
    for seed in range(3000):
        state.seed = seed
        rows = sampler.choose(state, 3, 4, NONE)
        assert [row < 10 for row in rows] == [False, True, False, True] and (rows < 30).all()
        drawn[int(rows[1])] += 1  # the first of the draws
    for row, mean in enumerate(means):
        chance = (1 / mean) / sum(1 / each for each in means)
        assert drawn[row] / 3000 == pytest.approx(chance, abs=0.03)
    state.seed = 0
    late = sampler.choose(state, 9, 40, np.arange(12))
    assert set(late[-12:]) == set(range(12)) and set(late) == set(range(40))
    few = sampler.choose(state, 0, 40, NONE)
    assert set(few[:10]) == set(range(10)) and set(few[10:30]) == set(range(10, 30))
    sampler.learn(state, seen([0], [0.5]))
    assert state.arrays["reward"][0] == pytest.approx(0.25)  # of 0 and 0.5
    assert sampler.metrics(state, np.array([0, 10, 11, 12]))["sampler/earlier"] == 0.25


@pytest.mark.parametrize(
    "options",
    [
        {"bounds": [], "begins": []},
        {"bounds": [5, 3], "begins": [1, 2]},
        {"bounds": [5], "begins": [0]},
        {"bounds": [5], "begins": [1], "share": 1.0},
    ],
)
def test_stages_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("sampler", "retrospective", {"column": "length", **options})


def test_adarft_takes_a_pass_rate_for_ease() -> None:
    options = {"difficulty": "level", "descending": True, "highest": 1.0}
    sampler = plugins.build("sampler", "adarft", options)
    state = begin(sampler, np.array([0.0, 0.25, 1.0, 0.5]))
    assert sampler.choose(state, 0, 4, NONE).tolist() == [2, 3, 1, 0]


def test_among_many_rows_adarft_takes_the_nearest() -> None:
    sampler = plugins.build("sampler", "adarft", {"difficulty": "level"})
    values = np.random.RandomState(0).uniform(0, 100, 50_000)
    state = begin(sampler, values)
    for target in (0.0, 40.0, 100.0):
        state.scalars["target"] = target
        nearest = np.argsort(np.abs(state.fixed["difficulty"] - np.float32(target)), kind="stable")
        avoid = nearest[:20]
        assert set(sampler.choose(state, 0, 64, avoid)) == set(nearest[20:84])


def test_among_many_equal_rows_adarft_takes_those_seen_least() -> None:
    sampler = plugins.build("sampler", "adarft", {"difficulty": "level", "target": 50})
    state = begin(sampler, np.repeat([20.0, 60.0], 50_000))
    found: list[int] = []
    for batch in range(100):
        rows = sampler.choose(state, batch, 32, NONE)
        assert (rows >= 50_000).all()
        sampler.learn(state, SeenRewards(rows, np.full(32, 0.5)))
        found += rows.tolist()
    assert len(set(found)) == len(found) == 3200


def test_among_many_rows_cdas_takes_the_nearest_of_each_side() -> None:
    sampler = plugins.build("sampler", "cdas")
    state = begin(sampler, np.zeros(40_000))
    random = np.random.RandomState(1)
    rows = random.permutation(40_000)[:30_000]
    state.arrays["difficulty"][rows] = random.normal(size=30_000)
    state.arrays["visits"][rows] = 1
    state.scalars["visited"] = 30_000
    state.scalars["competence"] = 0.4
    gap = 0.4 - state.arrays["difficulty"]
    below = np.flatnonzero(gap >= 0)[np.argsort(gap[gap >= 0])[:32]]
    above = np.flatnonzero(gap < 0)[np.argsort(-gap[gap < 0])[:32]]
    assert set(sampler.choose(state, 0, 64, NONE)) == {*below, *above}


# ---------------------------------------------------------------------------------------- fixed orders


def drawn(sampler: Any, state: SamplerState, count: int, number: int = 0) -> list[int]:
    stream = sampler.draws(state, number)
    return [next(stream) for _ in range(count)]


def test_a_curriculum_goes_from_easy_to_hard_and_begins_again() -> None:
    values = np.array([3.0, 1.0, 2.0, 1.0])
    sampler = plugins.build("sampler", "curriculum", {"difficulty": "level"})
    rows = drawn(sampler, begin(sampler, values), 8)
    assert [values[row] for row in rows] == [1, 1, 2, 3] * 2
    assert sorted(rows[:4]) == [0, 1, 2, 3]
    sampler = plugins.build("sampler", "curriculum", {"difficulty": "level", "descending": True})
    state = begin(sampler, values)
    assert [values[row] for row in drawn(sampler, state, 4)] == [3, 2, 1, 1]
    values = np.array([-1.5, np.nan, 2.0, -7.0, 0.0])
    assert drawn(sampler, begin(sampler, values), 5) == [2, 4, 0, 3, 1]
    assert sampler.metrics(state, np.array([0, 1])) == {"sampler/difficulty": 2.0}


def test_in_order_and_one_shot_draw_what_they_say() -> None:
    sampler = plugins.build("sampler", "in_order")
    assert drawn(sampler, begin(sampler, np.zeros(3)), 4, 5) == [2, 0, 1, 2]
    sampler = plugins.build("sampler", "one_shot", {"rows": [2, 0]})
    assert drawn(sampler, begin(sampler, np.zeros(3)), 3) == [2, 0, 2]
    sampler = plugins.build("sampler", "one_shot", {"rows": [3]})
    with pytest.raises(UserError, match="expected numbers from 0 to 2, got 3"):
        begin(sampler, np.zeros(3))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "rows:1: expected JSON"),
        ("9", "rows:1: expected a row from 0 to 8, got 9"),
        ('{"source": "t", "row": 0}', "rows:1: expected a source of s, got 't'"),
        ('{"source": "s"}', "expected a row from 0 to 8, got None"),
        ("", "expected a row, got none"),
    ],
)
def test_a_pool_names_the_line_that_is_wrong(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "rows").write_text(line)
    sampler = plugins.build("sampler", "pool", {"path": str(tmp_path / "rows")})
    with pytest.raises(UserError, match=message):
        begin(sampler, np.zeros(9))


def test_a_pool_draws_its_rows_once_an_epoch(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('5\n{"source": "s", "row": 2}\n7\n')
    sampler = plugins.build("sampler", "pool", {"path": str(tmp_path / "rows")})
    rows = drawn(sampler, begin(sampler, np.zeros(9)), 30)
    assert all(sorted(rows[i : i + 3]) == [2, 5, 7] for i in range(0, 30, 3))
    assert len({tuple(rows[i : i + 3]) for i in range(0, 30, 3)}) > 1
    sampler = plugins.build("sampler", "pool", {"path": str(tmp_path / "rows"), "shuffle": False})
    assert drawn(sampler, begin(sampler, np.zeros(9)), 4, 1) == [2, 7, 5, 2]


# ------------------------------------------------------------------------------- laws of the loader


@dataclass(frozen=True)
class Levels(Files):
    """Rows with a level; the last has none that is a number if `spoilt`."""

    spoilt: bool = False

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        rows = [{**row, "level": i * 7 % 50} for i, row in enumerate(super().rows(split))]
        return [*rows[:-1], {**rows[-1], "level": "hard"}] if self.spoilt else rows


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Sixty rows, six of which are bad: three that no sample is made of, three without their image."""
    Image.new("RGB", (8, 4)).save(tmp_path / "a.png")
    paths = ["" if i % 20 == 3 else "none.png" if i % 20 == 11 else "a.png" for i in range(60)]
    card = Levels(str(tmp_path), tuple(paths))
    return Source("levels", card, "train", card.rows("train"), access=Access(root=str(tmp_path)))


OPTIONS: dict[str, dict[str, Any]] = {
    "adarft": {"difficulty": "level", "step_size": 20.0, "highest": 49.0},
    "cdas": {},
    "prioritised": {},
    "retrospective": {"column": "level", "bounds": [15], "begins": [2]},
    "variance": {"diversity": 0.2},
}


def loader(source: Source, name: str, lag: int = 4, **more: Any) -> Loader:
    sampler = plugins.build("sampler", name, OPTIONS[name])
    more = {"quarantine_limit": 1.0, "seed": 5, **more}
    return Loader([source], prompt, 4, sampler=sampler, lag=lag, **more)


def reward(batch: PromptBatch) -> Rewards:
    """Rewards [4, 2] that are a function of the rows; some are not valid."""
    rows = [one.place[1] for one in batch.prompts]
    total = torch.tensor([[row % 3 / 2, row % 5 / 4] for row in rows])
    valid = torch.tensor([[row % 6 != 1, row % 4 != 3] for row in rows])
    return Rewards(total * valid, valid, ())


def written(batch: PromptBatch) -> Rollouts:
    """Two completions of the policy for each prompt."""
    completion = Completion("", Parsed(None, None, "none", False, 0.0), Frame())
    return Rollouts(batch, ((completion, completion),) * len(batch))


def ids(batch: PromptBatch) -> list[str]:
    return [one.sample.id for one in batch.prompts]


def run(made: Loader, batches: int, ahead: int = 0) -> list[list[str]]:
    """The ids of the next batches; `ahead` of them are drawn before their rewards are known."""
    found, waiting = [], []
    for _ in range(batches):
        while len(waiting) <= ahead:
            waiting.append(made.next())
        batch = waiting.pop(0)
        made.learn(written(batch), reward(batch))
        found.append(ids(batch))
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_workers_change_no_row_of_a_sampler_that_learns(source: Source, name: str) -> None:
    alone = run(loader(source, name), 30)
    with loader(source, name, workers=2) as ahead:
        assert run(ahead, 30) == alone
    assert run(loader(source, name), 30, ahead=3) == alone
    assert run(loader(source, name, lag=1), 30) != alone


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_change_no_row_of_a_sampler_that_learns(
    source: Source, name: str, workers: int
) -> None:
    alone = run(loader(source, name), 12)
    meeting = Meeting(2)

    def shard(rank: int) -> list[list[str]]:
        gather = functools.partial(meeting.gather, rank)
        with loader(source, name, rank=rank, world=2, gather=gather, workers=workers) as made:
            return run(made, 12)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(shard, range(2))) == [alone, alone]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_row_is_chosen_once(source: Source, name: str) -> None:
    made = loader(source, name)
    run(made, 40)
    bad = made.state["bad"]
    assert 0 < bad <= 6 + 4  # batches in flight may have chosen one again
    assert made.plan.arrays["bad"].size == len(made.quarantine.rows(source)) > 0


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("cut", "ahead"), [(0, 0), (1, 0), (5, 2), (17, 0), (17, 3)])
def test_a_cut_run_neither_skips_nor_repeats_a_row(
    source: Source, name: str, cut: int, ahead: int
) -> None:
    whole = run(loader(source, name, 4 + ahead), cut + 10, ahead)
    before = loader(source, name, 4 + ahead)
    cursor = before.state
    found, waiting = [], []
    for _ in range(cut):
        while len(waiting) <= ahead:
            waiting.append(before.next())
        batch = waiting.pop(0)
        cursor = batch.cursor
        before.learn(written(batch), reward(batch))
        found.append(ids(batch))
    kept = json.loads(json.dumps([cursor, before.plan.scalars]))
    arrays = {key: array.copy() for key, array in before.plan.arrays.items()}
    after = loader(source, name, 4 + ahead)
    after.plan.restore(kept[1], arrays)
    after.restore(kept[0])
    assert found + run(after, 10, ahead) == whole


def test_samplers_see_only_what_the_policy_wrote(source: Source) -> None:
    batch = loader(source, "cdas").next()
    rollouts = written(batch)
    own, other = rollouts.completions[0][0], replace(rollouts.completions[0][0], origin="hint")
    groups = ((own, other), (other, other), (own, own), (own, own))
    total = torch.tensor([[0.25, 1.0], [1.0, 1.0], [0.5, 1.0], [0.5, 0.0]])
    valid = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    found = mean_rewards(replace(rollouts, completions=groups), Rewards(total, valid, ()))
    assert found == [0.25, None, 0.75, 0.5]


def test_another_sampler_or_lag_is_refused_at_resume(source: Source) -> None:
    made = loader(source, "cdas")
    with pytest.raises(UserError, match="sampler was Cdas"):
        loader(source, "prioritised").restore(made.state)
    with pytest.raises(UserError, match=r"expected the state of sampler Cdas with .*lag 5"):
        loader(source, "cdas", lag=5).plan.restore(made.plan.scalars, made.plan.arrays)


def test_a_row_without_a_number_is_named(source: Source) -> None:
    card = Levels(paths=("text",) * 3, spoilt=True)
    spoilt = Source("levels", card, "train", card.rows("train"))
    with pytest.raises(
        UserError, match="row 2: column 'level': expected a finite number, got 'hard'"
    ):
        loader(spoilt, "adarft")


@pytest.mark.parametrize("name", plugins.names("sampler"))
def test_no_sampler_draws_rows_of_a_source_of_weight_0(name: str, tmp_path: Path) -> None:
    lines = '{"source": "s0", "row": 3}\n{"source": "s2", "row": 4}\n'
    (tmp_path / "rows.jsonl").write_text(lines)
    given = {"path": str(tmp_path / "rows.jsonl"), "difficulty": "level", "rows": [3, 31]}
    given |= {"column": "level", "bounds": [9], "begins": [2]}
    known = plugins.options_of(plugins.load("sampler", name))
    sampler = plugins.build("sampler", name, {k: v for k, v in given.items() if k in known})
    sources = [
        SourceRows(f"s{i}", 30, weight, lambda _: np.arange(30, dtype=np.float32))
        for i, weight in enumerate((1.0, 0.0, 2.0))
    ]
    plan = DrawPlan(sampler, sources, 0, 4, 1)
    drawn = set()
    for batch in range(25):
        rows = [plan.place(n) for n in itertools.islice(plan.stream(4 * batch, False), 4)]
        drawn |= {row.source for row in rows}
        if plan.adapts:
            drawn |= {plan.place(n).source for n in itertools.islice(plan.spares(batch), 20)}
            plan.note(batch, 4, rows)
            plan.learn(
                [*rows, DrawnRow(1, 29)], [0.5] * 5
            )  # what a strategy drew is not the sampler's
    assert drawn == {0, 2}


def test_a_pool_that_lists_a_row_of_a_source_of_weight_0_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"source": "s1", "row": 4}\n')
    sampler = plugins.build("sampler", "pool", {"path": str(tmp_path / "rows.jsonl")})
    sources = [SourceRows(f"s{i}", 9, 1.0 - i, lambda _: np.zeros(9)) for i in range(2)]
    with pytest.raises(UserError, match="expected a source of s0, got 's1'"):
        DrawPlan(sampler, sources, 0, 4, 1)
