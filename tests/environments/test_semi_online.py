"""Recorded episodes: what is right goes on to the next screen, what is wrong is patched or ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vlmrl.errors import UserError
from vlmrl.interaction.environment import Frame, Move, MoveOutcome, Sample
from vlmrl.parts.environments.semi_online import SemiOnline
from vlmrl.schema import Truth

ACTIONS = (
    {"action": "CLICK", "position": [0.5, 0.5]},
    {"action": "TYPE", "value": "milk"},
    {"action": "CLICK", "bbox": [0.0, 0.0, 0.2, 0.2]},
    {"action": "HOME"},
)
RIGHT = (
    '{"action": "click", "position": [50, 55]}',
    '{"action": "TYPE", "value": "Milk"}',
    '{"action": "CLICK", "position": [10, 10]}',
    '{"action": "HOME"}',
)
FRAME = Frame(100, 100, space="pixel")


def sample(steps: object) -> Sample:
    return Sample("row 1", "phone", ("Buy milk.",), Truth(fields={"steps": steps}), "think_action")


@pytest.fixture
def world(tmp_path: Path) -> SemiOnline:
    for number in range(4):
        Image.new("RGB", (20 + number, 30)).save(tmp_path / f"{number}.png")
    return SemiOnline(str(tmp_path), patches=1)


def play(world: SemiOnline, *actions: str, thought: str = "<think>so</think>") -> list[MoveOutcome]:
    steps = [{"screen": f"{n}.png", "action": action} for n, action in enumerate(ACTIONS)]
    state, outcomes = world.reset(sample(steps), 0), []
    assert (world.task(state), world.observe(state)[0].size) == ("Buy milk.", (20, 30))
    for action in actions:
        outcomes.append(world.step(state, Move(f"{thought}<action>{action}</action>", frame=FRAME)))
        state = outcomes[-1].state
    return outcomes


def test_what_is_right_leads_to_the_next_recorded_screen_and_earns_one(world: SemiOnline) -> None:
    outcomes = play(world, *RIGHT)
    assert [outcome.reward for outcome in outcomes] == pytest.approx([1.0] * 4)
    assert [outcome.done for outcome in outcomes] == [False, False, False, True]
    shown = [outcome.parts for outcome in outcomes]
    assert [[part.size for part in parts] for parts in shown] == [
        [(21, 30)],
        [(22, 30)],
        [(23, 30)],
        [],
    ]
    assert outcomes[-1].metrics == {"matched": 1.0, "progress": 1.0, "solved": 1.0}
    (unformatted, *_) = play(world, RIGHT[0], thought="")
    assert unformatted.reward == pytest.approx(0.9)


def test_a_wrong_action_is_patched_once_and_then_ends_the_episode(world: SemiOnline) -> None:
    _, wrong, right, end = play(
        world, RIGHT[0], '{"action": "TYPE", "value": "tea"}', RIGHT[2], "?"
    )
    assert wrong.reward == pytest.approx(0.1 + 0.9 * 0.5)  # the type is right, the text is not
    assert wrong.parts[0] == 'The action here is {"action": "TYPE", "value": "milk"}'
    assert wrong.parts[1].size == (22, 30)
    assert (right.metrics["matched"], right.metrics["progress"]) == (1.0, 0.25)
    assert (end.done, end.parts, end.metrics["solved"]) == (True, [], 0.0)
    _, second = play(world, RIGHT[1], RIGHT[0])  # neither is what was done there
    assert second.done and second.parts == [] and second.metrics["progress"] == 0.0
    (ended,) = play(SemiOnline(world.root, patches=0), RIGHT[3])
    assert ended.done and ended.reward == pytest.approx(0.1)


@pytest.mark.parametrize(
    "steps", [None, [], "x", [{"screen": 1, "action": {"action": "HOME"}}], [{"screen": "0.png"}]]
)
def test_a_row_without_steps_is_refused_by_name(world: SemiOnline, steps: object) -> None:
    with pytest.raises(UserError, match=r"sample 'row 1': fields\.steps"):
        world.reset(sample(steps), 0)


def test_a_screen_outside_of_the_folder_is_not_opened(world: SemiOnline, tmp_path: Path) -> None:
    steps = [{"screen": "/etc/hostname", "action": {"action": "HOME"}}]
    with pytest.raises(UserError):
        world.observe(world.reset(sample(steps), 0))
