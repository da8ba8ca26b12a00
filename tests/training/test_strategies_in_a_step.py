"""The seam of the step: what a strategy sees, and that what it returns is trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import SPARSE, ahead_config, begin_training
from vlmrl.schema import PromptBatch, Rewards, Rollouts
from vlmrl.training.controls import RandomRewards, ShuffledRewards
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy


@dataclass(frozen=True)
class Witness(Strategy):
    """Marks every sample before scoring, and replaces the rewards by 0, 1, 2 in every group."""

    draws: list[BatchDraw] = field(default_factory=list)
    seen: list[set[bool]] = field(default_factory=list)

    def prepare(self, rollouts: Rollouts, draw: BatchDraw, run: RunParts) -> Rollouts:
        self.draws.append(draw)
        prompts = tuple(
            replace(p, sample=replace(p.sample, meta={**p.sample.meta, "marked": True}))
            for p in rollouts.batch.prompts
        )
        return replace(rollouts, batch=PromptBatch(prompts, rollouts.batch.cursor))

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        assert draw == self.draws[-1]
        self.seen.append({"marked" in p.sample.meta for p in rollouts.batch.prompts})
        total = torch.arange(3.0).expand(rollouts.shape)
        return rollouts, Rewards(total, torch.ones_like(total, dtype=torch.bool), rewards.verdicts)

    def metrics(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        return {"witness/groups": float(len(rewards.total))}


class Onlooker(Witness):
    """Leaves the rewards alone."""

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        return rollouts, rewards


def test_a_strategy_changes_what_is_scored_and_trained_on(tmp_path: Path) -> None:
    witness = Witness()
    with begin_training(ahead_config(tmp_path / "run")) as trainer:
        trainer.strategies = [witness]
        report = trainer.step()
    assert witness.seen == [{True}]
    assert report.rewards.total.tolist() == [[0, 1, 2]] * 3
    assert report.metrics["witness/groups"] == 3
    assert report.metrics["reward/mean"] == 1
    assert (report.advantages.values[:, 0] < 0).all() and (report.advantages.values[:, 2] > 0).all()


@pytest.mark.slow
def test_a_strategy_sees_every_batch_that_it_draws(tmp_path: Path) -> None:
    more = ["algorithm={name: dapo, options: {dynamic_sampling_batches: 2}}", SPARSE]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        witness = Onlooker()
        trainer.strategies = [witness]
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
        return ShuffledRewards().expand(rollouts, rewards, BatchDraw(0, step, 0, 0.0), None)[1]  # type: ignore[arg-type]

    first = shuffle(0)
    assert first.total.flatten().sort().values.tolist() == total.flatten().tolist()
    assert torch.equal(first.valid, first.total != 5)
    assert torch.equal(first.total, shuffle(0).total)
    assert not torch.equal(first.total, shuffle(1).total)


def test_random_rewards_do_not_read_the_completions() -> None:
    rollouts, valid = Rollouts(PromptBatch(()), ()), torch.ones(50, 40).bool()
    valid[0, 0] = False

    def draw(step: int, total: torch.Tensor) -> torch.Tensor:
        given = Rewards(total, valid, ())
        return RandomRewards(0.3).expand(rollouts, given, BatchDraw(0, step, 0, 0.0), None)[1].total  # type: ignore[arg-type]

    first = draw(0, torch.zeros(50, 40))
    assert torch.equal(first, draw(0, torch.rand(50, 40))) and not torch.equal(
        first, draw(1, first)
    )
    assert {*first.flatten().tolist()} == {0.0, 1.0} and first[0, 0] == 0
    assert first.mean().item() == pytest.approx(0.3, abs=0.03)


def test_the_config_says_which_strategies_a_step_has(tmp_path: Path) -> None:
    def names(*more: str) -> list[str]:
        with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
            return [type(strategy).__name__ for strategy in trainer.strategies]

    assert names() == []
    assert names("control.random_rewards=0.5") == ["RandomRewards"]
    both = names("strategies=[shuffled_frames]", "control.shuffle_rewards=true")
    assert both == ["ShuffledFrames", "ShuffledRewards"]


@pytest.mark.parametrize("every", [None, 1, 2])
def test_the_optimizer_forgets_its_averages_at_each_nth_step(
    tmp_path: Path, every: int | None
) -> None:
    keys = ["optimizer.minibatches=1", "optimizer.epochs=1"]
    keys += [] if every is None else [f"optimizer.reset_every={every}"]
    counts = []
    with begin_training(ahead_config(tmp_path / "run", *keys)) as trainer:
        for _ in range(3):
            trainer.step()
            states = trainer.policy.optimizer.state.values()
            counts.append({int(state["step"]) for state in states})
    assert counts == {None: [{1}, {2}, {3}], 1: [{1}] * 3, 2: [{1}, {2}, {1}]}[every]
