"""The seam of the step: what an extension sees, and that what it returns is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import SPARSE, ahead_config, begin_training
from vlmrl.schema import PromptBatch, Rewards, Rollouts
from vlmrl.training.shuffled_rewards import ShuffledRewards
from vlmrl.training.step_extension import Draw, StepExtension


class Witness(StepExtension):
    """Marks every sample before scoring, and replaces the rewards by 0, 1, 2 in every group."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self.seen: list[set[bool]] = []

    def extend_rollouts(self, rollouts: Rollouts, draw: Draw) -> Rollouts:
        self.draws.append(draw)
        prompts = tuple(
            replace(p, sample=replace(p.sample, meta={**p.sample.meta, "marked": True}))
            for p in rollouts.batch.prompts
        )
        return replace(rollouts, batch=PromptBatch(prompts, rollouts.batch.cursor))

    def extend_scored(
        self, rollouts: Rollouts, rewards: Rewards, draw: Draw
    ) -> tuple[Rollouts, Rewards]:
        assert draw == self.draws[-1]
        self.seen.append({"marked" in p.sample.meta for p in rollouts.batch.prompts})
        total = torch.arange(3.0).expand(rollouts.shape)
        return rollouts, Rewards(total, torch.ones_like(total, dtype=torch.bool), rewards.verdicts)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        return {"witness/groups": float(len(rewards.total))}


def test_an_extension_extends_what_is_scored_and_trained_on(tmp_path: Path) -> None:
    witness = Witness()
    with begin_training(ahead_config(tmp_path / "run")) as trainer:
        trainer.extensions = [witness]
        report = trainer.step()
    assert witness.seen == [{True}]
    assert report.rewards.total.tolist() == [[0, 1, 2]] * 3
    assert report.metrics["witness/groups"] == 3
    assert report.metrics["reward/mean"] == 1
    assert (report.advantages.values[:, 0] < 0).all() and (report.advantages.values[:, 2] > 0).all()


@pytest.mark.slow
def test_dynamic_sampling_extends_every_batch_that_it_draws(tmp_path: Path) -> None:
    more = ["algorithm={name: dapo, options: {dynamic_sampling_batches: 2}}", SPARSE]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        witness = Witness()
        witness.extend_scored = lambda rollouts, rewards, draw: (rollouts, rewards)  # type: ignore[method-assign]
        trainer.extensions = [witness]
        numbers = []
        for _ in range(3):
            report = trainer.step()
            numbers.append(int(report.metrics["rollout/batches"]))
    assert max(numbers) > 1
    expected = [(step, number) for step, drawn in enumerate(numbers) for number in range(drawn)]
    assert [(draw.step, draw.number) for draw in witness.draws] == expected
    assert len({draw.seed(13) for draw in witness.draws}) == len(expected)


def test_shuffled_rewards_are_the_same_rewards_in_an_order_of_the_draw() -> None:
    total = torch.arange(12.0).view(3, 4)
    rewards = Rewards(total, total != 5, ())
    rollouts = Rollouts(PromptBatch(()), ())

    def shuffle(step: int) -> Rewards:
        return ShuffledRewards().extend_scored(rollouts, rewards, Draw(0, step, 0, 0.0))[1]

    first = shuffle(0)
    assert first.total.flatten().sort().values.tolist() == total.flatten().tolist()
    assert torch.equal(first.valid, first.total != 5)
    assert torch.equal(first.total, shuffle(0).total)
    assert not torch.equal(first.total, shuffle(1).total)


def test_the_config_says_which_extensions_a_step_has(tmp_path: Path) -> None:
    def names(*more: str) -> list[str]:
        with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
            return [type(extension).__name__ for extension in trainer.extensions]

    assert names() == []
    both = names("rollout.shuffled_group_size=2", "control.shuffle_rewards=true")
    assert both == ["ShuffledFrames", "ShuffledRewards"]
