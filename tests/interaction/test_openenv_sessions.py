"""Sessions in an OpenEnv server end with their rollouts, whatever ends these: none is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.driving import Scripted, run_turn
from helpers.hostile_tools import Misbehave
from helpers.openenv_server import Server, guessing, serving
from helpers.small import policy, prompt
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.interaction.driver import Driver, TurnLimits
from vlmrl.interaction.tools import AskedCall
from vlmrl.interaction.worlds import Worlds
from vlmrl.parts.environments import openenv
from vlmrl.schema import PromptBatch, Sample, Truth

ANSWER = "I give up."
SAMPLE = Sample("world-0", "worlds", (), Truth())


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


WRONG, RIGHT, CRASH = call("act", guess=3), call("act", guess=7), call("act", guess=-1)
BROKEN = WRONG + call("misbehave", how="raise")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def made() -> Any:
    return policy()


@pytest.fixture(scope="module")
def worlds() -> Iterator[tuple[Server, Worlds]]:
    """A server, and worlds behind it beside a tool that fails."""
    with serving() as found:
        opened = Worlds(guessing(found.url), [Misbehave()])
        yield found, opened
        opened.close()


def rolled(made: Any, worlds: Worlds, *texts: str, **limits: Any) -> Any:
    """Two rollouts that say these texts, turn by turn."""
    run = Driver(Scripted(*texts), {"noise": lambda space: worlds}, TurnLimits(**limits)).start(
        made
    )
    start = prompt(made, 0)
    sample = dataclasses.replace(start.sample, meta={"environment_seed": 7})
    batch = PromptBatch((dataclasses.replace(start, sample=sample),))
    return run.generate(batch, Sampling(2, 64)).completions[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "limits", "reason"),
    [
        ((WRONG, ANSWER), {}, "stop"),
        ((WRONG, RIGHT), {}, "stop"),
        ((WRONG, WRONG), {"max_turns": 2}, "turns"),
        ((WRONG, WRONG), {"max_images": 1}, "budget"),
        ((WRONG,), {"max_length": 150}, "budget"),
        ((CRASH,), {}, "abort"),
        ((WRONG, CRASH), {}, "abort"),
        ((BROKEN,), {}, "abort"),
    ],
)
def test_a_session_ends_with_its_rollout(
    made: Any, worlds: tuple[Server, Worlds], texts: Any, limits: Any, reason: str
) -> None:
    server, opened = worlds
    server.heard.clear()
    before = server.opened
    said = rolled(made, opened, *texts, **limits)
    assert [one.finish_reason for one in said] == [reason] * 2
    assert server.opened == before + 2
    assert server.all_left()
    assert [message["type"] for message in server.heard].count("close") == 2


@pytest.mark.slow
def test_a_session_that_cannot_begin_ends(server: Server) -> None:
    worlds = Worlds(guessing(server.url, reset_options={"fails": True}))
    try:
        found = run_turn(worlds, [AskedCall("act", {"guess": 3})], world=worlds.begin(SAMPLE, 0))
        assert "no such game" in str(found.fault)
        assert server.opened == 1 and server.all_left()
    finally:
        worlds.close()


@pytest.mark.slow
def test_a_server_that_leaves_when_all_is_done_is_no_fault(made: Any, server: Server) -> None:
    worlds = Worlds(guessing(server.url, reset_options={"leaves": True}))
    try:
        said = rolled(made, worlds, RIGHT)
        assert [one.finish_reason for one in said] == ["stop"] * 2
        assert [one.segments[0].reward for one in said] == [1.0] * 2
        assert server.all_left()
    finally:
        worlds.close()


def test_more_sessions_than_a_process_may_have_are_refused_and_none_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv, "MAX_SESSIONS", 2)
    world = guessing(server.url)
    states = [world.reset(SAMPLE, seed) for seed in range(2)]
    with pytest.raises(UserError, match="expected at most 2 rollouts at a time"):
        world.reset(SAMPLE, 2)
    assert server.open == 2
    for state in states:
        world.close(state)
    assert server.all_left()


KILLED = """
import os, signal, sys
from helpers.driving import run_turn
from helpers.openenv_server import guessing
from vlmrl.interaction.tools import AskedCall
from vlmrl.interaction.worlds import Worlds
from vlmrl.schema import Sample, Truth

if __name__ == "__main__":
    worlds = Worlds(guessing(sys.argv[1]))
    sample = Sample("world-0", "worlds", (), Truth())
    for seed in range(3):
        turn = [AskedCall("act", {"guess": 3})]
        assert run_turn(worlds, turn, world=worlds.begin(sample, seed)).fault is None
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.nightly
def test_a_run_that_is_killed_leaves_no_session(server: Server, tmp_path: Any) -> None:
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(file), server.url], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert server.opened == 3
    assert server.all_left()
