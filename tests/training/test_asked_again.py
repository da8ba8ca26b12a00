"""Completions that a strategy asks for: what is asked, whose places they take or where they are added."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.parts.strategies.critiques import Critiques
from vlmrl.parts.strategies.hints import Hints
from vlmrl.schema import PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("again") / "run"
    with begin_training(ahead_config(folder, "engine=hf")) as built:
        yield built


def batch(
    trainer: Trainer, totals: list[list[float]], hints: list[str]
) -> tuple[Rollouts, Rewards]:
    """Return a batch of three groups with these rewards, and these hints in its rows."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    prompts = tuple(
        replace(p, sample=replace(p.sample, meta={"hint": hint}))
        for p, hint in zip(rollouts.batch.prompts, hints, strict=True)
    )
    rollouts = replace(rollouts, batch=PromptBatch(prompts, rollouts.batch.cursor))
    rewards = trainer.scorer.score(rollouts, 0.0)
    return rollouts, replace(rewards, total=torch.tensor(totals))


def origins(rollouts: Rollouts) -> list[list[str]]:
    return [[c.origin for c in group] for group in rollouts.completions]


def test_failed_groups_with_a_hint_get_further_completions_and_others_empty_places(
    trainer: Trainer,
) -> None:
    failed, partly = [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]
    before = batch(trainer, [failed, failed, partly], ["Look left.", "", "Look up."])
    rollouts, rewards = Hints(count=2).expand(*before, DRAW, trainer.run_parts)
    assert origins(rollouts) == [["policy"] * 3 + ["hint"] * 2] * 3
    assert [group[:3] for group in rollouts.completions] == list(before[0].completions)
    assert rewards.valid.tolist() == [
        [True] * 5,
        [True] * 3 + [False] * 2,
        [True] * 3 + [False] * 2,
    ]
    assert torch.equal(rewards.total[:, :3], before[1].total)
    assert not rewards.total[1:, 3:].any() and rewards.verdicts[1][3:] == ({}, {})
    hinted = rollouts.completions[0][3:]
    judged = trainer.scorer.judge([hinted], [rollouts.batch.prompts[0].sample], whole=False)
    expected = [entry.reward for entry in judged[0]]
    assert rewards.total[0, 3:].tolist() == pytest.approx(expected, abs=1e-6)
    assert "Look left." not in rollouts.batch.prompts[0].text  # trained on as if without
    found = Hints().metrics(rollouts, rewards)
    assert found["hints/share"] == pytest.approx(1 / 3)


def test_a_group_that_grew_has_the_advantages_and_the_gradient_of_all_of_it(
    tmp_path: Path,
) -> None:
    hinted = "strategies=[{name: hints, options: {column: boxes, failed_at: 0.9, count: 2}}]"
    more = [hinted, "algorithm=guide_grpo", "engine=hf"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    rewards, advantages = report.rewards, report.advantages
    assert report.rollouts.shape == (3, 5) and torch.equal(advantages.kept, rewards.valid)
    sizes = rewards.valid.sum(-1).tolist()
    assert set(sizes) <= {3, 5} and 5 in sizes, rewards.total
    for p, size in enumerate(sizes):
        paid = rewards.total[p, :size].tolist()
        scale = statistics.stdev(paid) + 1e-4
        expected = [(value - statistics.fmean(paid)) / scale for value in paid] + [0.0] * (5 - size)
        assert advantages.values[p].tolist() == pytest.approx(expected, abs=1e-4)
    own = rewards.total[:, :3]
    assert report.metrics["reward/mean"] == pytest.approx(float(own.mean()), abs=1e-6)
    assert report.metrics["rollout/masked"] == 0 and report.metrics["update/skipped"] == 0


def test_a_prompt_with_a_hint_shows_it_once_and_keeps_its_media(trainer: Trainer) -> None:
    (rollouts, _) = batch(trainer, [[0.0] * 3] * 3, ["Look left."] * 3)
    prompt = rollouts.batch.prompts[0]
    told = trainer.run_parts.retell(prompt, Hints()._with_hint(prompt))
    assert told.text.count("Hint: Look left.") == 1
    assert told.text.replace("Hint: Look left.", "").split() == prompt.text.split()
    assert [m.size for m in told.images] == [m.size for m in prompt.images]
    assert (told.home, told.place, told.frame) == (prompt.home, prompt.place, prompt.frame)


def test_the_best_second_answer_takes_the_last_place(trainer: Trainer) -> None:
    before = batch(trainer, [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.2, 0.1, 0.3]], [""] * 3)
    rollouts, rewards = Critiques(tries=3).expand(*before, DRAW, trainer.run_parts)
    last = ["policy", "policy", "refinement"]
    assert origins(rollouts) == [["policy"] * 3, last, last]
    assert rewards.total[1, :2].tolist() == [0.0, 1.0]
    one, _ = Critiques(tries=1).expand(*before, DRAW, trainer.run_parts)
    assert origins(one) == origins(rollouts)
    assert Critiques().metrics(rollouts, rewards)["critiques/share"] == pytest.approx(2 / 3)


def test_a_critique_shows_the_answer_and_tells_the_truth_only_where_asked(trainer: Trainer) -> None:
    rollouts, _ = batch(trainer, [[0.0] * 3] * 3, [""] * 3)
    prompt, completion = rollouts.batch.prompts[0], rollouts.completions[0][0]
    plain = Critiques()._with_critique(prompt, completion)
    assert [turn.role for turn in plain.turns] == ["user", "assistant", "user"]
    assert plain.turns[1].text == completion.text and plain.media == prompt.sample.media
    assert "The right answer" not in plain.text
    assert "The right answer is: {" in Critiques(tell=True)._with_critique(prompt, completion).text


@pytest.mark.slow
def test_a_step_trains_on_hinted_completions_and_counts_them_nowhere(tmp_path: Path) -> None:
    more = ["strategies=[{name: critiques, options: {tries: 3, correct_above: 9}}]", "engine=hf"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    assert origins(report.rollouts) == [["policy", "policy", "refinement"]] * 3
    totals = report.rewards.total[:, :2]
    assert report.metrics["reward/mean"] == pytest.approx(float(totals.mean()), abs=1e-6)
    assert report.metrics["critiques/share"] == 1
