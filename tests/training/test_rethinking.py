"""Forced rethinking: what goes on behind a trigger, what of it is kept, and that it is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.rethinking import Rethinking
from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
WAIT = "\n\nWait"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("rethinking") / "run"
    with begin_training(ahead_config(folder, "engine=hf", "rollout.max_tokens=40")) as built:
        yield built


@pytest.fixture(scope="module")
def batch(trainer: Trainer) -> tuple[Rollouts, Rewards]:
    """Completions of four tokens and a stop token, but for the first of each group, which is cut."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    stop = min(trainer.policy.stop_ids)

    def ended(completion, g: int):  # type: ignore[no-untyped-def]
        if not g:
            return replace(completion, finish_reason="length")
        ids, logprobs = completion.token_ids[:4], completion.logprobs[:4]
        done = {"token_ids": (*ids, stop), "logprobs": (*logprobs, -0.5)}
        return replace(completion, finish_reason="stop", versions=((0, 5),), **done)

    groups = tuple(
        tuple(ended(c, g) for g, c in enumerate(group)) for group in rollouts.completions
    )
    rollouts = replace(rollouts, completions=groups)
    return rollouts, trainer.scorer.score(rollouts, 0.0)


def test_what_ended_by_itself_goes_on_behind_the_trigger(
    trainer: Trainer, batch: tuple[Rollouts, Rewards]
) -> None:
    strategy = Rethinking(triggers=(WAIT,), share=1.0, correct_above=-1)
    rollouts, rewards = strategy.expand(*batch, DRAW, trainer.run_parts)
    ids = tuple(trainer.policy.tokenizer(WAIT, add_special_tokens=False)["input_ids"])
    for before, group in zip(batch[0].completions, rollouts.completions, strict=True):
        assert group[0] == before[0]
        for begun, again in zip(before[1:], group[1:], strict=True):
            assert again.origin == "refinement" and again.token_ids[:4] == begun.token_ids[:4]
            assert again.token_ids[4 : 4 + len(ids)] == ids
            assert again.logprobs[: 4 + len(ids)] == (*begun.logprobs[:4], *[0.0] * len(ids))
            assert 4 + len(ids) < len(again.token_ids) == len(again.logprobs) <= 40
            assert sum(count for _, count in again.versions) == len(again.token_ids)
            assert WAIT in again.text
    alone = trainer.scorer.score(rollouts, 0.0)
    assert torch.equal(rewards.total[:, 1:], alone.total[:, 1:])
    metrics = strategy.metrics(rollouts, rewards)
    assert metrics["rethinking/share"] == 1
    assert metrics["rethinking/reward"] == pytest.approx(float(alone.total[:, 1:].mean()))


def test_only_right_ones_are_kept_and_no_more_than_count(
    trainer: Trainer, batch: tuple[Rollouts, Rewards]
) -> None:
    every = Rethinking(triggers=(WAIT,), share=1.0, correct_above=-1)
    paid = every.expand(*batch, DRAW, trainer.run_parts)[1].total[:, 1:]
    low, high = paid.flatten().sort().values[2:4].tolist()
    middle = (low + high) / 2
    strategy = Rethinking(triggers=(WAIT,), share=1.0, count=1, correct_above=middle)
    rollouts, rewards = strategy.expand(*batch, DRAW, trainer.run_parts)
    for p, group in enumerate(rollouts.completions):
        right = [float(r) for r in paid[p] if r > middle]
        kept = [g for g, c in enumerate(group) if c.origin == "refinement"]
        assert kept == ([2] if right else [])
        if right:
            assert float(rewards.total[p, 2]) == pytest.approx(right[0])
    none = Rethinking(share=1.0, correct_above=9).expand(*batch, DRAW, trainer.run_parts)
    assert none[0].completions == batch[0].completions


def test_a_share_goes_on_and_what_is_too_long_does_not(
    trainer: Trainer, batch: tuple[Rollouts, Rewards]
) -> None:
    few = Rethinking(share=1e-9).expand(*batch, DRAW, trainer.run_parts)
    assert few[0] is batch[0]
    long = Rethinking(triggers=("\n\nWait" * 60,), share=1.0)
    assert long.expand(*batch, DRAW, trainer.run_parts)[0] is batch[0]


@pytest.mark.parametrize("options", [{"triggers": []}, {"share": 0}, {"count": 0}])
def test_a_choice_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="expected"):
        plugins.build("strategy", "rethinking", options)
