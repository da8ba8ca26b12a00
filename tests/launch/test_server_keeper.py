"""Servers with keepers: killed within a step, started again, joining late; no prompt lost or doubled.

The servers are small processes that speak our servers' protocol, not vLLM.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers import stand_in_server
from helpers.small import policy, prompt
from vlmrl import config
from vlmrl.assemble.build import build_engine
from vlmrl.config import ModelConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.vllm_parts.options import model_files
from vlmrl.engines.vllm_server import RunningServers, VllmServer
from vlmrl.errors import LostEngine, UserError
from vlmrl.features.launch.server_keeper import (
    MAX_RESTARTS,
    KeptServers,
    ServerKeeper,
    ServerState,
    digest_of,
)
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system import distributed

pytestmark = pytest.mark.slow

TOKEN = "a secret"
DRAW = Sampling(n=2, max_tokens=4, seed=3)


class Fleet:
    """Keepers in this process, an engine that uses them, and what their servers were asked."""

    def __init__(self, folder: Path, count: int) -> None:
        self.record = folder / "record"
        self.record.touch()
        program = [stand_in_server.__file__, "--record", str(self.record)]
        self.keepers = [ServerKeeper(TOKEN, "127.0.0.1", program=program) for _ in range(count)]
        self.unplaced: set[int] = set()
        asks = [self._asker(number) for number in range(count)]
        self.servers = KeptServers(asks, TOKEN, "127.0.0.1")
        self.made = policy()
        self.engines: list[RunningServers] = []

    def start(self) -> None:
        """Start an engine in place of the last."""
        chosen = VllmServer(transfer="tcp", max_model_len=1024, start_timeout_s=60.0)
        self.engines.append(chosen.on(self.servers).start(self.made))

    @property
    def engine(self) -> RunningServers:
        return self.engines[-1]

    def _asker(self, number: int) -> Any:
        def ask(method: str, *arguments: Any) -> Any:
            if number in self.unplaced:
                return None
            return getattr(self.keepers[number], method)(*arguments)

        return ask

    def states(self) -> list[ServerState]:
        return [keeper.status().state for keeper in self.keepers]

    def wait_for(self, number: int, state: ServerState) -> None:
        deadline = time.monotonic() + 60
        while self.keepers[number].status().state is not state:
            assert time.monotonic() < deadline, self.keepers[number].status()
            time.sleep(0.1)

    def batch(self, count: int = 24) -> PromptBatch:
        return PromptBatch(tuple(prompt(self.made, n, images=0) for n in range(count)))

    def asked(self) -> list[tuple[str, str]]:
        """Port and version of the weights of every request so far."""
        lines = [line.split() for line in self.record.read_text().splitlines()]
        return [(port, version) for port, version, _ in lines]

    def port(self, number: int) -> str:
        return self.keepers[number].status().url.rpartition(":")[2]

    def train(self) -> None:
        self.made.version += 1
        self.engine.sync(self.made)

    def require_whole(self, rollouts: Rollouts, version: int) -> None:
        """Every prompt has its own completions once, by weights of this version."""
        stand_in_server.require_whole(rollouts, DRAW, self.made, version)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        for keeper in self.keepers:
            keeper.close()


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(tmp_path, request.param)
    yield made
    pids = [keeper.pid() for keeper in made.keepers]
    made.close()
    assert not any(pid and psutil.pid_exists(pid) for pid in pids)


def kill(keeper: ServerKeeper) -> None:
    pid = keeper.pid()
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize("fleet", [2], indirect=True)
def test_a_server_killed_within_a_step_costs_no_prompt_and_joins_after_a_sync(fleet: Fleet) -> None:
    fleet.start()
    assert fleet.states() == [ServerState.READY, ServerState.READY]
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=0)
    assert len(set(fleet.asked())) == 2  # both had a part in it

    dead, before = fleet.port(0), len(fleet.asked())
    done: list[int] = []

    def finished(number: int, group: object) -> None:
        done.append(number)
        if len(done) == 4:
            kill(fleet.keepers[0])

    batch = fleet.batch(200)
    fleet.require_whole(fleet.engine.generate(batch, DRAW, finished), version=0)
    assert Counter(done) == Counter(range(200))
    assert fleet.engine._servers[0].ready != fleet.engine._servers[1].ready

    fleet.wait_for(0, ServerState.STALE)
    fresh = fleet.port(0)
    assert fresh != dead
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=0)
    assert fresh not in {port for port, _ in fleet.asked()[before:]}

    fleet.train()
    assert fleet.states() == [ServerState.READY, ServerState.READY]
    before = len(fleet.asked())
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=1)
    assert {(fleet.port(0), "1"), (fleet.port(1), "1")} == set(fleet.asked()[before:])
    assert "none" not in {version for _, version in fleet.asked()}


@pytest.mark.parametrize("fleet", [3], indirect=True)
def test_the_number_of_servers_may_change_between_steps(fleet: Fleet) -> None:
    fleet.unplaced = {2}
    threading.Timer(5.0, fleet.unplaced.clear).start()  # at the start, all are waited for
    fleet.start()
    assert fleet.states() == [ServerState.READY] * 3

    fleet.unplaced = {0, 1}  # their nodes are gone, as far as anybody can tell
    fleet.train()
    before = len(fleet.asked())
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=1)
    assert set(fleet.asked()[before:]) == {(fleet.port(2), "1")}

    fleet.unplaced = set()
    fleet.train()
    before = len(fleet.asked())
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=2)
    assert set(fleet.asked()[before:]) == {(fleet.port(n), "2") for n in range(3)}


@pytest.mark.parametrize("fleet", [1], indirect=True)
def test_the_only_server_is_waited_for_and_another_trainer_finds_it_running(fleet: Fleet) -> None:
    fleet.start()
    kill(fleet.keepers[0])
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=0)
    pid = fleet.keepers[0].pid()
    fleet.engine.close()

    fleet.made.version = 7
    fleet.start()
    assert fleet.keepers[0].pid() == pid
    assert fleet.keepers[0].status().version == 7
    fleet.require_whole(fleet.engine.generate(fleet.batch(), DRAW), version=7)


@pytest.mark.parametrize("fleet", [1], indirect=True)
def test_a_rank_that_cannot_wait_for_the_only_server_ends_so_that_the_run_is_begun_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.start()
    kill(fleet.keepers[0])
    monkeypatch.setattr(distributed, "_rank", 1)
    monkeypatch.setattr(distributed, "_world", 2)
    with pytest.raises(LostEngine, match="no server is left"):  # a UserError would end a launch
        fleet.engine.generate(fleet.batch(), DRAW)


def test_a_model_that_was_saved_and_loaded_is_the_one_that_servers_have(tmp_path: Path) -> None:
    """The next attempt loads a checkpoint; servers of the first one must not start again."""
    made = policy()
    made.save(str(tmp_path / "checkpoint"))
    again = ModelConfig(path=str(tmp_path / "checkpoint"))
    loaded = Policy(*load_model(again, (), seed=0), again)
    first, second = (
        digest_of({"max_model_len": 512}, model_files(each, tmp_path / name))
        for name, each in (("new", made), ("loaded", loaded))
    )
    assert first == second
    other = policy("qwen2_vl")
    assert first != digest_of({"max_model_len": 512}, model_files(other, tmp_path / "other"))
    assert first != digest_of({"max_model_len": 256}, model_files(made, tmp_path / "new"))


def test_a_server_that_ends_again_and_again_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('Error: no such device')")
    keeper = ServerKeeper(TOKEN, "127.0.0.1", program=[str(broken)])
    servers = KeptServers([lambda method, *a: getattr(keeper, method)(*a)], TOKEN, "127.0.0.1")
    engine = VllmServer(transfer="tcp", max_model_len=1024).on(servers)
    with pytest.raises(UserError, match=r"every server was given up: .*Error: no such device"):
        engine.start(policy())
    assert keeper.status().state is ServerState.DEAD and keeper._restarts == MAX_RESTARTS + 1
    keeper.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_servers": 2, "transfer": "tcp"}, "leave out the engine's options"),
        ({"transfer": "file"}, "expected engine option transfer: tcp or nccl, got 'file'"),
    ],
)
def test_options_that_exclude_kept_servers_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        VllmServer(**options).on(KeptServers([], TOKEN, "127.0.0.1"))


def test_an_engine_without_servers_is_refused() -> None:
    with pytest.raises(UserError, match=r"serve\.replicas: expected engine vllm_server, got 'hf'"):
        build_engine(config.load("quickstart"), KeptServers([], TOKEN, "127.0.0.1"))
