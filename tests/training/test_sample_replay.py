"""Selective sample replay: what is stored and drawn against slow code, and a resume that goes on with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.rollouts_ahead import SPARSE, ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.parts.strategies.sample_replay import SampleReplay
from vlmrl.schema import Advantages, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

Scored = tuple[Rollouts, Rewards, Advantages]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("replay") / "run"
    with begin_training(ahead_config(folder, "engine=hf")) as built:
        yield built


def scored(trainer: Trainer, number: int, values: list[list[float]]) -> Scored:
    """A batch of 3 groups of 3 with these advantages; a completion with one has ten times that as reward."""
    rollouts = trainer._generate(trainer._draw_prompts(number))
    table = torch.tensor(values)
    everywhere = torch.ones(3, 3, dtype=torch.bool)
    rewards = Rewards(table * 10, everywhere, tuple(({}, {}, {}) for _ in range(3)))
    return rollouts, rewards, Advantages(table, everywhere, torch.full((3, 3), 0.5))


BATCHES = [
    [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.25, -0.75]],
    [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]],
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]],
]


def test_the_buffer_and_what_is_trained_on_are_those_of_slow_code(trainer: Trainer) -> None:
    strategy = SampleReplay(share=0.7, capacity=6)
    strategy.begin(trainer.run_parts)
    held: list[list[tuple[Any, tuple[int, ...], float]]] = []
    drawn_so_far = 0
    for number, values in enumerate(BATCHES):
        batch = scored(trainer, number, values)
        draw = BatchDraw(3, number, 0, 0.0)
        rollouts, rewards, credited = strategy.select(*batch, draw, trainer.run_parts)
        fresh = sum(v != 0 for row in values for v in row)
        before = [entry for group in held for entry in group]
        drawn = []
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                if not credited.kept[p, g]:
                    continue
                value, place = float(credited.values[p, g]), rollouts.batch.prompts[p].place
                assert float(rewards.total[p, g]) == pytest.approx(10 * value)
                assert float(credited.weights[p, g]) == 0.5 and rewards.valid[p, g]
                if completion.origin == "replay":
                    drawn.append((place, completion.token_ids, value))
        wanted = round(0.7 * 9) - fresh
        assert len(drawn) == max(0, min(wanted, len(before))) == len(set(drawn))
        assert all(entry in before for entry in drawn)
        assert int(credited.kept.sum()) == fresh + len(drawn)
        drawn_so_far += len(drawn)
        for p, row in enumerate(values):  # the oldest groups go until all fit
            own = [
                (batch[0].batch.prompts[p].place, batch[0].completions[p][g].token_ids, v)
                for g, v in enumerate(row)
                if v
            ]
            held += [own] if own else []
        while sum(map(len, held)) > 6:
            held.pop(0)
        stored = strategy.state["values"].tolist()
        assert stored == pytest.approx([v for group in held for _, _, v in group])
        assert [tuple(row[:2]) for row in strategy.state["rows"].tolist()] == [
            g[0][0] for g in held
        ]
    assert drawn_so_far == 5 + 6


def test_groups_that_are_drawn_stand_evenly_among_fresh_ones_and_can_be_packed(
    trainer: Trainer,
) -> None:
    strategy = SampleReplay(share=1.0)
    strategy.begin(trainer.run_parts)
    strategy.select(*scored(trainer, 0, BATCHES[0]), BatchDraw(0, 0, 0, 0.0), trainer.run_parts)
    rollouts, rewards, credited = strategy.select(
        *scored(trainer, 1, BATCHES[1]), BatchDraw(0, 1, 0, 0.0), trainer.run_parts
    )
    replayed = [any(c.origin == "replay" for c in group) for group in rollouts.completions]
    assert replayed == [False, True, False, True, False]
    assert rollouts.shape == tuple(rewards.total.shape) == tuple(credited.values.shape) == (5, 3)
    (batch,) = pack(rollouts, credited, updates=1, micro_tokens=10**6, max_tokens=6)
    assert batch.num_rollouts == 6
    sampled = {c.token_ids: c.logprobs for group in rollouts.completions for c in group}
    for micro in batch.micro:
        for row in range(len(micro.group)):
            ids = tuple(micro.token_ids[row][micro.mask[row]].tolist())
            logprobs = micro.sampling_logprobs[row][micro.mask[row]].tolist()
            assert logprobs == pytest.approx(sampled[ids])
    assert strategy.metrics(rollouts, rewards)["sample_replay/stored"] == 6


@pytest.mark.parametrize(
    ("alpha", "shares"), [(0.0, [1, 1, 1]), (1.0, [1, 2, 5]), (2.0, [1, 4, 25])]
)
def test_a_completion_is_drawn_in_proportion_to_its_advantage(
    trainer: Trainer, alpha: float, shares: list[int]
) -> None:
    strategy = SampleReplay(share=1 / 9, alpha=alpha)
    strategy.begin(trainer.run_parts)
    first = scored(trainer, 0, [[0.2, 0.0, 0.0], [0.0, -0.4, 0.0], [0.0, 0.0, 1.0]])
    strategy.select(*first, BatchDraw(0, 0, 0, 0.0), trainer.run_parts)
    found: Counter[float] = Counter()
    for seed in range(600):
        drawn = strategy._drawn(1, BatchDraw(seed, 1, 0, 0.0), trainer.run_parts)
        found[round(float(drawn[0][2][0, 0]), 1)] += 1
    expected = [share / sum(shares) for share in shares]
    assert [found[v] / 600 for v in (0.2, -0.4, 1.0)] == pytest.approx(expected, abs=0.05)


def test_an_older_completion_has_the_weight_of_what_the_policy_became_since(tmp_path: Path) -> None:
    more = ["strategies=[{name: sample_replay, options: {share: 1.0}}]", "algorithm=grpo", SPARSE]
    with begin_training(ahead_config(tmp_path / "run", "engine=hf", *more)) as trainer:
        reports = [trainer.step() for _ in range(3)]
    replayed = [
        c
        for r in reports
        for group in r.rollouts.completions
        for c in group
        if c.origin == "replay"
    ]
    assert replayed and {v for c in replayed for v, _ in c.versions} <= {0, 1}
    last = reports[-1]
    assert last.metrics["sample_replay/share"] > 0 and last.metrics["rollout/logprob_gap"] > 1e-5
    assert (
        last.advantages.kept.sum() <= 9
        and (last.advantages.values[last.advantages.kept] != 0).all()
    )


def test_an_algorithm_with_advantages_by_token_is_refused(trainer: Trainer) -> None:
    rollouts, rewards, credited = scored(trainer, 0, BATCHES[0])
    by_token = replace(credited, values=credited.values[..., None].repeat(1, 1, 6))
    strategy = SampleReplay()
    strategy.begin(trainer.run_parts)
    with pytest.raises(UserError, match="sample_replay: expected an algorithm with one advantage"):
        strategy.select(rollouts, rewards, by_token, BatchDraw(0, 0, 0, 0.0), trainer.run_parts)


@pytest.mark.parametrize("options", [{"share": 0}, {"alpha": -1}, {"capacity": 0}])
def test_a_choice_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("strategy", "sample_replay", options)


@pytest.mark.slow
def test_a_run_with_replay_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, *more: str) -> Any:
        named = "strategies=[{name: sample_replay, options: {share: 1.0, capacity: 20}}]"
        short = ("sft=null", "evaluation=null", "algorithm=grpo", named, SPARSE)
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(2))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    lines = metric_lines(tmp_path / "run")
    assert lines == metric_lines(tmp_path / "whole")
