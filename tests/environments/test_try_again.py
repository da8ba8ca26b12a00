"""A question that is asked until it is answered: turns pay the published reward of an episode."""

from __future__ import annotations

import pickle
import random

import pytest

from vlmrl.interaction.environment import Move, MoveOutcome, Sample
from vlmrl.parts.environments.try_again import TryAgain
from vlmrl.schema import Truth

ROW = Sample("row 1", "questions", ("How many?",), Truth(text=("7",)), "think_answer")


def play(world: TryAgain, *answers: str | None) -> list[MoveOutcome]:
    state, outcomes = world.reset(ROW, 0), []
    assert (world.task(state), world.observe(state)) == ("How many?", [])
    for answer in answers:
        text = "I do not know." if answer is None else f"<think>so</think><answer>{answer}</answer>"
        outcomes.append(world.step(pickle.loads(pickle.dumps(state)), Move(text)))
        state = outcomes[-1].state
    return outcomes


def slow_reward(answers: list[str | None], decay: float, repeats: float, unread: float) -> float:
    """The published reward of an episode, from all of its answers at once."""
    total = decay ** (len(answers) - 1) if answers[-1] == "7" else 0.0
    total -= repeats * (1 - len({*answers}) / len(answers))
    return total - unread * answers.count(None)


@pytest.mark.parametrize("seed", range(20))
def test_the_turns_of_an_episode_add_up_to_the_published_reward(seed: int) -> None:
    draw = random.Random(seed)
    answers: list[str | None] = []
    while len(answers) < 5 and "7" not in answers:
        answers.append(draw.choice(["7", "8", "9", "ten", None]))
    outcomes = play(TryAgain("exact", decay=0.6, repeat_cost=0.3, unread_cost=0.2), *answers)
    total = sum(outcome.reward for outcome in outcomes)
    assert total == pytest.approx(slow_reward(answers, 0.6, 0.3, 0.2))
    assert [outcome.done for outcome in outcomes] == [False] * (len(answers) - 1) + [True]
    assert outcomes[-1].metrics["tries"] == len(answers)
    assert outcomes[-1].metrics["solved"] == float(answers[-1] == "7")


def test_a_wrong_answer_is_told_to_try_again_and_nothing_of_the_truth() -> None:
    wrong, right = play(TryAgain("exact"), "8", "7")
    assert (wrong.parts, wrong.reward, wrong.done) == (["Try again."], 0.0, False)
    assert (right.parts, right.reward, right.done) == ([], 0.5, True)
    (last,) = play(TryAgain("exact", max_tries=1), "8")
    assert (last.parts, last.done) == ([], True)


def test_the_thought_is_never_the_answer() -> None:
    world = TryAgain("exact")
    state = world.reset(ROW, 0)
    outcome = world.step(state, Move("<think>7</think><answer>8</answer>"))
    assert not outcome.metrics["solved"]


def test_a_row_that_the_verifier_cannot_grade_is_a_fault_and_no_wrong_answer() -> None:
    world = TryAgain("box_iou")
    with pytest.raises(Exception, match="box"):
        world.step(world.reset(ROW, 0), Move("<think>so</think><answer>7</answer>"))


@pytest.mark.parametrize(
    "options",
    [
        {"max_tries": 0},
        {"decay": 0.0},
        {"decay": 1.5},
        {"repeat_cost": -1.0},
        {"unread_cost": -0.1},
    ],
)
def test_options_out_of_range_and_verifiers_of_groups_are_refused(
    options: dict[str, float],
) -> None:
    with pytest.raises(ValueError, match="expected"):
        TryAgain("exact", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one answer"):
        TryAgain("quality_rank")
