"""What must hold of every strategy: whole groups, honest origins, and a draw that decides everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.contracts import require
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import ORIGINS, PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, collect_state, restore_state
from vlmrl.training.trainer import Trainer

KIND = "strategy"
SUBSETS = {"part": lambda cls: True}
ROLES = ("self_play/propose", "self_play/solve", "cycle/describe", "cycle/ground")
"""Training sources that strategies ask for by name."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("strategies") / "run"
    described = "template: caption_think_answer"
    more = [f"{{name: {name}, card: shapes, limit: 6, weight: 0, {described}}}" for name in ROLES]
    few = f"data.train=[{{card: shapes, limit: 6}}, {', '.join(more)}]"
    with begin_training(ahead_config(folder, "engine=hf", few)) as built:
        yield built


@pytest.fixture(scope="module")
def scored(trainer: Trainer) -> tuple[Rollouts, Rewards]:
    """A batch in which every group has failed, and every row has a hint."""
    draw = trainer._draw_prompts(0)
    rollouts = trainer._generate(draw)
    prompts = tuple(
        replace(p, sample=replace(p.sample, meta={**p.sample.meta, "hint": "Look left."}))
        for p in rollouts.batch.prompts
    )
    rollouts = replace(rollouts, batch=PromptBatch(prompts, rollouts.batch.cursor))
    rewards = trainer.scorer.score(rollouts, 0.0)
    return rollouts, replace(rewards, total=torch.zeros_like(rewards.total))


def run(part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards], seed: int = 0) -> Any:
    strategy, draw = plugins.build("strategy", part), BatchDraw(seed, 0, 0, 0.0)
    strategy.begin(trainer.run_parts)
    rollouts = strategy.prepare(scored[0], draw, trainer.run_parts)
    return strategy, strategy.expand(rollouts, scored[1], draw, trainer.run_parts)


def test_groups_keep_their_size_and_every_completion_its_verdicts(
    part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    _, (rollouts, rewards) = run(part, trainer, scored)
    groups, size = scored[0].shape
    require(rollouts.shape[0] == groups, part, "must keep the groups")
    require(rollouts.shape[1] >= size, part, "must keep the size of groups, or widen all")
    require(rewards.total.shape == rollouts.shape, part, "must keep rewards [P, G]")
    sizes = [len(verdicts) for verdicts in rewards.verdicts]
    require(sizes == [len(g) for g in rollouts.completions], part, "lost verdicts")
    assert [p.sample.id for p in rollouts.batch.prompts] == [
        p.sample.id for p in scored[0].batch.prompts
    ]


def test_what_the_policy_did_not_sample_says_so(
    part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    _, (rollouts, _) = run(part, trainer, scored)
    known = {id(c.token_ids) for group in scored[0].completions for c in group}
    for group in rollouts.completions:
        for completion in group:
            assert completion.origin in ORIGINS
            new = id(completion.token_ids) not in known
            require(new == (completion.origin != "policy"), part, "must state origins")


def test_the_draw_decides_everything(
    part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    (_, first), (_, again) = run(part, trainer, scored), run(part, trainer, scored)
    require(first[0].completions == again[0].completions, part, "is not a function of the draw")
    assert torch.equal(first[1].total, again[1].total)


def test_its_curves_are_named_after_it(
    part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    strategy, (rollouts, rewards) = run(part, trainer, scored)
    for name, value in strategy.metrics(rollouts, rewards).items():
        require(isinstance(value, float), part, f"{name} must be a float")
        assert name.partition("/")[0] == type(strategy).__module__.rpartition(".")[2]


def test_its_state_is_all_that_it_keeps(
    part: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    strategy, _ = run(part, trainer, scored)
    kept = collect_state([strategy])
    require(all(isinstance(a, np.ndarray) for a in kept.values()), part, "must keep arrays")
    fresh = plugins.build("strategy", part)
    restore_state([fresh], kept)
    again = collect_state([fresh])
    require(all((again[k] == kept[k]).all() for k in kept), part, "must take its state back")
    with pytest.raises(UserError, match="expected the state of strategies"):
        restore_state([fresh], {**kept, "other": np.zeros(1)})
