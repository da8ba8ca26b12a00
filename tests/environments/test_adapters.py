"""Environments of others: OpenEnv's messages over a loopback server, and TRL's classes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.driving import run_turn
from helpers.openenv_server import SCHEMA, Server, guessing, serving
from vlmrl.interaction.environment import Frame, Move, Refused, Sample
from vlmrl.interaction.tools import AskedCall
from vlmrl.interaction.worlds import Worlds
from vlmrl.parts.environments import openenv
from vlmrl.parts.environments.openenv import Openenv
from vlmrl.parts.environments.trl_class import TrlClass
from vlmrl.schema import Truth

SAMPLE = Sample("world-0", "worlds", (), Truth(), meta={"environment_seed": 7, "level": 2})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def test_an_openenv_world_speaks_the_published_messages(server: Server) -> None:
    server.heard.clear()
    world = guessing(server.url)
    state = world.reset(SAMPLE, 1)
    image, text = world.observe(state)
    assert (image.size, text) == ((28, 28), "Guess.")
    with pytest.raises(Refused, match="VALIDATION_ERROR: Invalid message"):
        world.step(state, Move("", "act", {"guess": "x"}))
    wrong = world.step(state, Move("", "act", {"guess": 3}))
    assert (wrong.reward, wrong.done, wrong.parts[-1]) == (0.0, False, "Wrong.")
    with pytest.raises(ConnectionError, match="EXECUTION_ERROR: the game crashed"):
        world.step(wrong.state, Move("", "act", {"guess": -1}))
    right = world.step(wrong.state, Move("", "act", {"guess": 7}))
    assert (right.reward, right.done) == (1.0, True)
    world.close(right.state)
    with pytest.raises(ConnectionError, match="ended with its process"):
        world.step(right.state, Move("", "act", {"guess": 7}))
    assert [message["type"] for message in server.heard[:2]] == ["reset", "step"]
    assert server.heard[0]["data"] == {"seed": 7}
    schema = world.schemas()[0]["function"]
    assert schema["parameters"]["properties"] == SCHEMA["properties"]


def test_a_connection_that_the_server_closed_is_let_go() -> None:
    serving = pytest.importorskip("websockets.sync.server")
    ended = pytest.importorskip("websockets.exceptions").ConnectionClosed

    def once(connection: Any) -> None:
        """Answers the reset and the last step, and closes the connection by itself."""
        for done in (False, True):
            connection.recv()
            answer = {"observation": {"text": "Go."}, "reward": float(done), "done": done}
            connection.send(json.dumps({"type": "observation", "data": answer}))

    with serving.serve(once, "127.0.0.1", 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        world = Openenv(f"http://127.0.0.1:{listening.socket.getsockname()[1]}")
        state = world.step(world.reset(SAMPLE, 1), Move("", "act", {"message": "x"})).state
        connection = openenv._connections[state.name]
        with pytest.raises(ended):
            connection.recv(timeout=5)
        world.close(state)
        assert state.name not in openenv._connections
        listening.shutdown()


def test_an_openenv_rollout_in_a_process_of_its_own(server: Server) -> None:
    worlds = Worlds(guessing(server.url), workers=4)
    try:
        turn = [AskedCall("act", {"guess": 3})]
        first = run_turn(worlds, turn, world=worlds.begin(SAMPLE, 0))
        assert first.fault is None and first.parts[-1] == "Wrong."
        turn = [AskedCall("act", {"guess": 7})]
        last = run_turn(worlds, turn, world=first.step.world)
        assert (last.step.reward, last.step.done) == (1.0, True)
        turn = [AskedCall("act", {"guess": -1})]
        crashed = run_turn(worlds, turn, world=worlds.begin(SAMPLE, 0))
        assert "the game crashed" in crashed.fault
    finally:
        worlds.close()


GAME = '''
class Game:
    """A class as TRL's `environment_factory` takes it."""

    def __init__(self):
        self.reward, self.done = 0.0, False

    def reset(self, level: int, **kwargs):
        self.secret = level
        return "Guess a number."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The number.
        """
        if self.done:
            raise ValueError("Game over.")
        if number < 0:
            raise ValueError("no such number")
        self.done = number == self.secret
        self.reward += 1.0 if self.done else 0.25
        return "right" if self.done else "wrong"
'''


def test_a_class_of_trl_is_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "game.py"
    file.write_text(GAME)
    world = TrlClass(f"{file}:Game")
    state = world.reset(SAMPLE, 0)
    assert world.observe(state) == ["Guess a number."]
    (schema,) = world.schemas()
    assert schema["function"]["name"] == "guess"
    assert schema["function"]["parameters"]["required"] == ["number"]
    with pytest.raises(Refused, match="no such number"):
        world.step(state, Move("", "guess", {"number": -1}, Frame()))
    with pytest.raises(Refused, match="expected guess"):
        world.step(state, Move("", "reset", {}, Frame()))
    wrong = world.step(state, Move("", "guess", {"number": 5}, Frame()))
    assert (wrong.reward, wrong.done, list(wrong.parts)) == (0.25, False, ["wrong"])
    right = world.step(wrong.state, Move("", "guess", {"number": 2}, Frame()))
    assert (right.reward, right.done) == (1.0, True)
    again = world.step(wrong.state, Move("", "guess", {"number": 2}, Frame()))
    assert again.reward == 1.0  # a state is never changed


def test_a_class_of_trl_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "game.py"
    file.write_text(GAME)
    worlds = Worlds(TrlClass(f"{file}:Game"))
    try:
        world = worlds.begin(SAMPLE, 0)
        for number in (5, 2):
            turn = [AskedCall("guess", {"number": number})]
            found = run_turn(worlds, turn, world=world)
            assert found.fault is None
            world = found.step.world
        assert (found.step.reward, found.step.done) == (1.0, True)
    finally:
        worlds.close()
