"""The blind-answer penalty: what is asked without media, what it takes from whom, and that it is seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.witness_engine import BLIND, WITNESSES
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.blind_penalty import BlindPenalty
from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
LABEL = "blind_penalty"
# The script of the engine: four of five completions are right.
RIGHT = [1.0, 1.0, 1.0, 1.0, 0.0]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("blind") / "run"
    with begin_training(ahead_config(folder, *WITNESSES, "rollout.prompts=12")) as built:
        yield built


@pytest.fixture(scope="module")
def scored(trainer: Trainer) -> tuple[Rollouts, Rewards]:
    rollouts = trainer._generate(trainer._draw_prompts(0))
    return rollouts, trainer.scorer.score(rollouts)


def guessed(rollouts: Rollouts) -> list[float]:
    """Return of each prompt what one who always answers BLIND earns."""
    rights = [p.sample.truth.text for p in rollouts.batch.prompts]
    return [float(right == (BLIND,)) for right in rights]


def test_the_same_questions_are_asked_without_their_media(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    trainer.engine.asked.clear()  # type: ignore[attr-defined]
    BlindPenalty(count=2).expand(*scored, DRAW, trainer.run_parts)
    asked = trainer.engine.asked  # type: ignore[attr-defined]
    assert [p.sample.id for p in asked] == [p.sample.id for p in scored[0].batch.prompts]
    for blind, prompt in zip(asked, scored[0].batch.prompts, strict=True):
        assert not blind.media and not blind.encoded.tensors
        assert blind.sample.parts == (prompt.sample.text,)
        assert blind.sample.template == prompt.sample.template


def test_a_group_counts_the_less_the_more_is_guessed(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    b = guessed(scored[0])
    assert 0 < sum(b) < len(b)
    rollouts, rewards = BlindPenalty(weight=0.5).expand(*scored, DRAW, trainer.run_parts)
    assert torch.equal(rewards.total, scored[1].total)
    weights = [prompt.sample.weight for prompt in rollouts.batch.prompts]
    assert weights == pytest.approx([1 - 0.5 * share for share in b])
    advantages = trainer.algorithm.advantages(rewards, rollouts, 0.0)
    plain = trainer.algorithm.advantages(scored[1], scored[0], 0.0)
    assert torch.equal(advantages.values, plain.values)
    assert torch.allclose(advantages.weights, plain.weights * torch.tensor(weights)[:, None])


@pytest.mark.parametrize("how", ["subtract", "multiply"])
def test_it_is_taken_from_the_rewards_where_asked(
    how: str, trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    strategy = BlindPenalty(how=how, weight=0.8)  # type: ignore[arg-type]
    rollouts, rewards = strategy.expand(*scored, DRAW, trainer.run_parts)
    assert rollouts is scored[0]
    share = 0.8 * torch.tensor(guessed(scored[0]))[:, None]
    before = scored[1].total
    expected = before - share if how == "subtract" else before * (1 - share)
    assert torch.allclose(rewards.total, expected, atol=1e-6)


def test_the_curves_are_the_blind_grade_and_the_gap_to_the_seeing_one(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    strategy = BlindPenalty()
    found = strategy.metrics(*strategy.expand(*scored, DRAW, trainer.run_parts))
    b = guessed(scored[0])
    mean = sum(b) / len(b)
    assert found[f"{LABEL}/blind"] == pytest.approx(mean)
    # Format is no part of a grade: it says nothing of what is seen.
    assert found[f"{LABEL}/gap"] == pytest.approx(sum(RIGHT) / 5 - mean)


@pytest.mark.parametrize(
    ("how", "algorithm"),
    [("subtract", "grpo"), ("subtract", "rloo"), ("multiply", "grpo"), ("multiply", "gdpo")],
)
def test_a_penalty_that_an_algorithm_takes_back_is_refused_and_would_change_nothing(
    how: str, algorithm: str, trainer: Trainer, scored: tuple[Rollouts, Rewards], tmp_path: Path
) -> None:
    ways = f"strategies=[{{name: blind_penalty, options: {{how: {how}}}}}]"
    config = ahead_config(tmp_path / "run", *WITNESSES, ways, f"algorithm={algorithm}")
    taken_back = f"how: {how} changes no advantage of algorithm '{algorithm}'"
    with pytest.raises(UserError, match=taken_back), begin_training(config):
        pass
    if algorithm == "gdpo":
        return  # it looks at single verdicts, not at the reward
    # Half of it, as a group without any reward at all would be uniform.
    strategy = BlindPenalty(how=how, weight=0.5)  # type: ignore[arg-type]
    after = strategy.expand(*scored, DRAW, trainer.run_parts)
    of = plugins.build("algorithm", algorithm, {})
    changed = of.advantages(after[1], after[0], 0.0).values
    assert torch.allclose(changed, of.advantages(scored[1], scored[0], 0.0).values, atol=1e-3)


@pytest.mark.parametrize(
    ("how", "algorithm"), [("subtract", "reinforce_pp"), ("multiply", "dr_grpo"), ("weigh", "grpo")]
)
def test_a_penalty_that_an_algorithm_sees_is_taken(
    how: str, algorithm: str, tmp_path: Path
) -> None:
    ways = f"strategies=[{{name: blind_penalty, options: {{how: {how}}}}}]"
    config = ahead_config(tmp_path / "run", *WITNESSES, ways, f"algorithm={algorithm}")
    with begin_training(config) as trainer:
        report = trainer.step()
    assert f"{LABEL}/blind" in report.metrics and f"{LABEL}/gap" in report.metrics


def test_prompts_without_media_are_left_alone(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    prompts = tuple(replace(p, sample=p.sample.without_media()) for p in scored[0].batch.prompts)
    rollouts = replace(scored[0], batch=replace(scored[0].batch, prompts=prompts))
    after = BlindPenalty().expand(rollouts, scored[1], DRAW, trainer.run_parts)
    assert after[0] is rollouts and after[1] is scored[1]


@pytest.mark.parametrize("options", [{"count": 0}, {"weight": 0}, {"weight": 1.5}])
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        BlindPenalty(**options)  # type: ignore[arg-type]
