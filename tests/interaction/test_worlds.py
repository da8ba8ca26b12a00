"""Environments in rollouts: what earns, what is shown, what ends, and what is a fault."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.driving import run_turn
from helpers.hostile_worlds import Corridor, Spoken
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.interaction.tools import AskedCall, World
from vlmrl.interaction.worlds import Worlds
from vlmrl.parts.tools.calculator import Calculator
from vlmrl.schema import Sample, Truth

SAMPLE = Sample("world-0", "worlds", (), Truth())


@pytest.fixture(scope="module")
def corridor() -> Iterator[Worlds]:
    worlds = Worlds(Corridor(limit_s=2.0), [Calculator()])
    yield worlds
    worlds.close()


def go(direction: str) -> AskedCall:
    return AskedCall("go", {"direction": direction})


def act(worlds: Worlds, *calls: AskedCall, world: World | None = None, text: str = "") -> Any:
    return run_turn(worlds, calls, text=text, world=world or worlds.begin(SAMPLE, 3))


def test_a_step_pays_shows_and_moves_on(corridor: Worlds) -> None:
    first = act(corridor, go("right"))
    assert (first.step.reward, first.step.done, first.parts) == (0.25, False, ("at 1",))
    assert first.calls[0].outcome == "ok"
    again = act(corridor, go("right"), world=first.step.world)
    assert (again.step.reward, again.step.done, again.parts) == (1.0, True, ())
    assert again.step.metrics == {"place": 2.0}
    repeated = act(corridor, go("right"), world=first.step.world)  # a state is a value
    assert repeated.step.world.state == again.step.world.state


def test_several_actions_of_one_turn_are_done_in_order(corridor: Worlds) -> None:
    found = act(corridor, go("right"), go("left"), go("right"), go("right"), go("right"))
    assert [call.outcome for call in found.calls] == ["ok"] * 4 + ["refused"]
    assert found.step.reward == pytest.approx(1.5) and found.step.done
    assert "the world is done" in found.calls[-1].note


def test_a_refusal_is_shown_and_leaves_the_state(corridor: Worlds) -> None:
    found = act(corridor, go("left"))
    assert found.fault is None and found.parts == ("Error: there is a wall",)
    assert (found.step.reward, found.step.done) == (0.0, False)
    assert pickle.loads(found.step.world.state) == 0
    for call, told in (
        (go("up"), "expected left or right"),
        (AskedCall("fly"), "there is no function 'fly'"),
        (AskedCall("go", problem="expected a call in JSON"), "expected a call in JSON"),
    ):
        refused = act(corridor, call)
        assert refused.calls[0].outcome == "refused" and told in str(refused.parts[0])


def test_forty_actions_of_one_turn_are_refused_and_no_fault(corridor: Worlds) -> None:
    many = [AskedCall("go", {"direction": "up"})] * 40
    found = run_turn(corridor, many, world=corridor.begin(SAMPLE, 0))
    assert found.fault is None
    assert [call.outcome for call in found.calls] == ["refused"] * 40
    assert found.calls[-1].note == "expected at most 8 actions"


def test_tools_work_beside_actions(corridor: Worlds) -> None:
    names = [schema["function"]["name"] for schema in corridor.schemas()]
    assert names == ["go", "misbehave", "calculator"]
    found = act(corridor, go("right"), AskedCall("calculator", {"expression": "6*7"}))
    assert found.parts == ("42", "at 1")
    alone = act(corridor, AskedCall("calculator", {"expression": "1+1"}))
    assert alone.parts == ("2",) and alone.step is None


FAULTS = {
    "hang": "no result within 2 s",
    "abort": "SIGABRT",
    "allocate": "memory",
    "raise": "ConnectionRefusedError: nobody listens",
    "pay_nan": "finite reward",
    "pay_text": "expected a number, got '1000'",
    "measure_text": "expected a number, got '1'",
    "measure_nan": "finite number",
    "show_an_object": "expected a text, an image",
    "keep_an_unpicklable_state": "",
    "keep_a_huge_state": "at most 67108864 bytes",
}


@pytest.mark.parametrize("how", FAULTS)
def test_whatever_else_a_world_does_is_a_fault(corridor: Worlds, how: str) -> None:
    found = act(corridor, go("right"), AskedCall("misbehave", {"how": how}))
    assert found.fault is not None and FAULTS[how] in found.fault
    assert found.step is None and found.parts == ()
    assert [call.outcome for call in found.calls] == ["fault", "fault"]
    assert act(corridor, go("right")).step.reward == 0.25


def test_without_actions_the_whole_text_is_the_move() -> None:
    worlds = Worlds(Spoken())
    try:
        assert worlds.takes_text and worlds.schemas() == []
        found = act(worlds, text="open the door")
        assert (found.step.reward, found.step.done) == (1.0, True)
        assert found.calls[0].name == "act"
    finally:
        worlds.close()


def test_an_action_and_a_tool_of_one_name_are_a_mistake() -> None:
    with pytest.raises(UserError, match="an action and a tool have the name 'go'"):
        Worlds(Corridor(), [Go()])


class Go(Calculator):
    """A tool of the name of an action."""


OUTSIDE = '''
from dataclasses import dataclass
from tests_helpers import Corridor


@dataclass(frozen=True)
class Outside(Corridor):
    """A corridor in a file of its own."""
'''


def test_an_environment_in_a_file_of_the_users_runs_in_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "outside.py"
    file.write_text(OUTSIDE.replace("tests_helpers", "helpers.hostile_worlds"))
    worlds = Worlds(plugins.build("environment", f"{file}:Outside"))
    try:
        assert act(worlds, go("right")).parts == ("at 1",)
    finally:
        worlds.close()
