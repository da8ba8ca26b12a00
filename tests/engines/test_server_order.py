"""Which of several servers a rank asks first, and what is said of one that was killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.server import Server, in_turn


def test_ranks_begin_with_different_servers_and_ask_all_of_them() -> None:
    servers = [Server(f"http://host:{port}", "token", 1.0) for port in range(8)]
    firsts = Counter(in_turn(servers, rank)[0].url for rank in range(16))
    assert set(firsts.values()) == {2} and len(firsts) == 8
    for rank in range(16):
        assert sorted(map(str, in_turn(servers, rank))) == sorted(map(str, servers))
    assert in_turn(servers, 0) == servers
    assert in_turn([], 3) == []


def test_a_server_that_was_killed_is_said_to_be(tmp_path: Path) -> None:
    server = Server("not started", "token", 1.0)
    server.launch([], {}, tmp_path, program=("-c", "import time; time.sleep(600)"))
    assert "killed" not in str(server)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    while not server.ended:
        time.sleep(0.01)
    with pytest.raises(
        EngineFault, match=r"generation: server \S+ \(killed by signal 9\), /path: Conn"
    ):
        server.call("GET", "/path", None, 5.0, "generation")
    server.stop()
