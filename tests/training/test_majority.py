"""The majority reward: whom it pays, what it pays a policy that collapsed, and that the run says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.parts.strategies.majority import Majority, most_frequent
from vlmrl.runs.complaints import complain
from vlmrl.schema import Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
SIZES = ["rollout.prompts=4", "rollout.group_size=4", "rewards=[format]", "engine=hf"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("majority") / "run"
    task = "data.train=[{card: shapes, options: {task: question}}]"
    with begin_training(ahead_config(folder, *SIZES, task)) as built:
        yield built


def answering(
    trainer: Trainer, answers: Sequence[Sequence[str]], weight: float = 1.0
) -> tuple[Rollouts, Rewards, Rewards]:
    """Return four groups of four with these answers, and their rewards before and after."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    groups = []
    for group, wanted in zip(rollouts.completions, answers, strict=True):
        written = (f"<think>a</think><answer>{text}</answer>" for text in wanted)
        groups.append(
            tuple(
                replace(c, parsed=templates.split(t, "think_answer"), text=t, finish_reason="stop")
                for c, t in zip(group, written, strict=True)
            )
        )
    rollouts = replace(rollouts, completions=tuple(groups))
    before = trainer.scorer.score(rollouts)
    _, after = Majority(weight).expand(rollouts, before, DRAW, trainer.run_parts)
    return rollouts, before, after


def test_the_answer_of_most_of_a_group_is_paid_whether_it_is_right_or_not(trainer: Trainer) -> None:
    answers = [
        ["red", "Red.", "blue", "green"],  # normalised, two against one and one
        ["red", "red", "blue", "blue"],  # a tie
        ["red", "blue", "green", "yellow"],  # nobody agrees
        ["", "", "", "red"],  # one answer is no majority
    ]
    _, before, after = answering(trainer, answers, weight=0.5)
    gain = after.total - before.total
    assert gain.tolist() == [[0.5, 0.5, 0.0, 0.0], *[[0.0] * 4] * 3]
    assert after.valid.all()


@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ([], ""),
        (["a"], ""),
        (["a", "a"], "a"),
        (["a", "b"], ""),
        (["a", "b", "b", "a"], ""),
        (["b", "a", "a", "c", "c", "a"], "a"),
    ],
)
def test_a_majority_is_more_frequent_than_all_others(votes: list[str], chosen: str) -> None:
    assert most_frequent(votes) == chosen


def test_cut_completions_do_not_vote(trainer: Trainer) -> None:
    rollouts, before, _ = answering(trainer, [["red"] * 4] * 4)
    cut = tuple(replace(c, finish_reason="length") for c in rollouts.completions[0][:3])
    first = (*cut, rollouts.completions[0][3])
    rollouts = replace(rollouts, completions=(first, *rollouts.completions[1:]))
    _, after = Majority().expand(rollouts, before, DRAW, trainer.run_parts)
    assert (after.total - before.total)[0].tolist() == [0.0] * 4


def test_a_policy_that_answers_the_same_to_everything_is_paid_in_full_and_reported(
    trainer: Trainer,
) -> None:
    """The known failure: no label is looked at, so that one answer to all is the best policy."""
    rollouts, before, after = answering(trainer, [["red"] * 4] * 4)
    assert len({p.sample.text for p in rollouts.batch.prompts}) > 1
    assert torch.equal(after.total - before.total, torch.ones(4, 4))
    found = Majority().metrics(rollouts, after)
    assert found["majority/one_answer"] == 1 and found["majority/entropy"] == 0
    assert found["majority/share"] == 1 and found["majority/none"] == 0
    (line,) = complain(found)
    assert "collapse: 100 % of the majorities are one answer" in line


def test_the_first_of_equally_frequent_answers_is_paid_where_ties_say_so(trainer: Trainer) -> None:
    answers = [
        ["red", "blue", "blue", "red"],
        ["red", "blue", "green", "yellow"],
        ["", "blue", "red", ""],
        ["", "", "", ""],
    ]
    rollouts, before, _ = answering(trainer, answers)
    _, after = Majority(ties="first").expand(rollouts, before, DRAW, trainer.run_parts)
    gain = (after.total - before.total).tolist()
    assert gain == [[1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert most_frequent(["b", "a", "a", "b"], takes_first=True) == "b"
    assert most_frequent([], takes_first=True) == ""


def test_all_vote_and_the_first_are_trained_on(trainer: Trainer) -> None:
    rollouts, before, _ = answering(trainer, [["blue", "red", "red", "red"]] * 4)
    _, after = Majority(trained=2).expand(rollouts, before, DRAW, trainer.run_parts)
    assert (after.total - before.total)[0].tolist() == [0, 1, 1, 1]
    assert after.valid.tolist() == [[True, True, False, False]] * 4


def test_a_reward_of_the_source_decides_which_answers_equal_the_majoritys(
    tmp_path: Path,
) -> None:
    pytest.importorskip("math_verify")
    answers = [
        ["1/2", "0.5", "1/2", "3"],
        ["x + 1", "1 + x", "1 + x", "x"],
        ["7", "7", "", "7.0"],
        ["1", "2", "3", "4"],
    ]
    sizes = [*SIZES[:2], "rewards=[{verifier: math, weight: 0}]", "engine=hf"]
    task = "data.train=[{card: shapes, options: {task: question}}]"
    with begin_training(ahead_config(tmp_path / "run", *sizes, task)) as trainer:
        rollouts, before, _ = answering(trainer, answers)
        _, after = Majority(by="math").expand(rollouts, before, DRAW, trainer.run_parts)
        gain = (after.total - before.total).tolist()
        assert gain == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
        assert Majority().metrics(rollouts, after)["majority/share"] == 1.75 / 4
        with pytest.raises(UserError, match="source 'shapes' has no reward 'maths'"):
            Majority(by="maths").expand(rollouts, before, DRAW, trainer.run_parts)


def test_answers_that_differ_from_prompt_to_prompt_are_no_collapse(trainer: Trainer) -> None:
    colours = ["red", "green", "blue", "yellow"]
    rollouts, _, after = answering(trainer, [[c, c, c, "circle"] for c in colours])
    found = Majority().metrics(rollouts, after)
    assert found["majority/one_answer"] == 0.25 and complain(found) == []
    # 3/16 for each of four colours, and 4/16 for the odd one.
    expected = -4 * 3 / 16 * math.log(3 / 16) - 4 / 16 * math.log(4 / 16)
    assert found["majority/entropy"] == pytest.approx(expected)
    assert found["majority/share"] == 0.75


def test_few_groups_say_nothing_of_a_collapse(trainer: Trainer) -> None:
    answers = [["red"] * 4, ["red"] * 4, ["a", "b", "c", "d"], ["a", "b", "c", "d"]]
    rollouts, _, after = answering(trainer, answers)
    found = Majority().metrics(rollouts, after)
    assert "majority/one_answer" not in found and found["majority/none"] == 0.5
