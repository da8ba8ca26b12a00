"""Which of several servers a rank asks first."""

from __future__ import annotations

from collections import Counter

from vlmrl.engines.vllm_parts.server import Server, in_turn


def test_ranks_begin_with_different_servers_and_ask_all_of_them() -> None:
    servers = [Server(f"http://host:{port}", "token", 1.0) for port in range(8)]
    firsts = Counter(in_turn(servers, rank)[0].url for rank in range(16))
    assert set(firsts.values()) == {2} and len(firsts) == 8
    for rank in range(16):
        assert sorted(map(str, in_turn(servers, rank))) == sorted(map(str, servers))
    assert in_turn(servers, 0) == servers
    assert in_turn([], 3) == []
