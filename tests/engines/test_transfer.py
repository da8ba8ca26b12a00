"""Transfers of weights to stand-ins of servers: who gets them, what they cost, whom a failure concerns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers.counting import Counting
from vlmrl.engines.vllm_parts import transfer
from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.transfer import FileTransfer, HeldWeights, TcpTransfer

EMBED = torch.randn(400, 64)
UNITS = [
    {"embed.weight": EMBED, "head.weight": EMBED},
    *({f"layers.{n}.up": torch.randn(2**20), f"layers.{n}.scale": torch.ones(3)} for n in range(3)),
]
WEIGHTS = {name: weight for unit in UNITS for name, weight in unit.items()}
SIZE = sum(w.nbytes for w in {id(w): w for w in WEIGHTS.values()}.values())


class Sink:
    """Does what a server does with an update, in the calls that the trainer makes."""

    def __init__(self, breaks_at: str = "") -> None:
        self.got: dict[str, torch.Tensor] = {}
        self.calls: list[str] = []
        self._breaks_at = breaks_at

    def call(self, method: str, path: str, *_: Any) -> dict[str, int]:
        assert (method, path) == ("GET", "/get_world_size")
        return {"world_size": 1}

    def sync(self, path: str, body: Any = None) -> None:
        self.calls.append(path)
        if path != "/update_weights":
            return
        try:
            for name, weight in self._sent(body["update_info"]):
                for each in (name, *body["update_info"]["tied"].get(name, ())):
                    self.got[each] = weight
                if name == self._breaks_at:
                    raise EngineFault("sync: it broke")
        except OSError as error:
            raise EngineFault(f"sync: {error}") from error

    def _sent(self, info: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        if "paths" in info:
            for path in info["paths"]:
                yield from load_file(path).items()
        else:
            listed = (info[key] for key in ("names", "dtypes", "shapes", "digests"))
            yield from transfer.receive_by_tcp(transfer.Meeting(**info["meeting"]), *listed)


@pytest.fixture
def held(tmp_path: Path) -> HeldWeights:
    made = HeldWeights(tmp_path)
    made.replace(UNITS)
    return made


@pytest.fixture
def tcp(held: HeldWeights, monkeypatch: pytest.MonkeyPatch) -> TcpTransfer:
    """A transfer whose bytes on the wire are counted."""
    accepting = transfer.accepting

    @contextmanager
    def counted(address: str, timeout: float) -> Iterator[Any]:
        with accepting(address, timeout) as (listener, meeting):
            yield Counting.of(listener), meeting

    monkeypatch.setattr(transfer, "accepting", counted)
    return TcpTransfer(held, "127.0.0.1", 20.0)


def opened(transfer: Any, *sinks: Sink) -> list[Any]:
    for sink in sinks:
        transfer.open(sink)
    return list(sinks)


def is_whole(sink: Sink) -> bool:
    return sink.got.keys() == WEIGHTS.keys() and all(
        torch.equal(sink.got[name], weight) for name, weight in WEIGHTS.items()
    )


UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update"]


@pytest.mark.parametrize("count", [1, 3])
def test_by_tcp_the_model_leaves_the_trainer_once_for_any_number_of_servers(
    count: int, tcp: TcpTransfer
) -> None:
    sinks = opened(tcp, *(Sink() for _ in range(count)))
    assert tcp.send(sinks) == {}
    assert all(is_whole(sink) and sink.calls[1:] == UPDATE for sink in sinks)
    assert SIZE < Counting.sent < SIZE + 300 * count


def test_by_tcp_one_that_breaks_off_concerns_itself_and_those_behind_it(tcp: TcpTransfer) -> None:
    first, broken, last = sinks = opened(tcp, Sink(), Sink(breaks_at="layers.1.up"), Sink())
    faults = tcp.send(sinks)
    assert set(faults) == {broken, last}
    assert is_whole(first) and not is_whole(last)
    assert UPDATE[2] in first.calls and UPDATE[2] not in broken.calls + last.calls
    assert all(torch.equal(weight, WEIGHTS[name]) for name, weight in last.got.items())
    assert tcp.send([last]) == {} and is_whole(last)


def test_by_tcp_new_weights_are_announced_anew(tcp: TcpTransfer, held: HeldWeights) -> None:
    (sink,) = opened(tcp, Sink())
    tcp.send([sink])
    held.replace({name: weight + 1 for name, weight in unit.items()} for unit in UNITS[1:])
    assert tcp.send([sink]) == {}
    assert torch.equal(sink.got["layers.2.up"], WEIGHTS["layers.2.up"] + 1)


def test_by_file_every_server_is_named_the_same_files(held: HeldWeights) -> None:
    transfer = FileTransfer(held)
    sinks = opened(transfer, Sink(), Sink(breaks_at="layers.1.scale"), Sink())
    assert list(transfer.send(sinks)) == [sinks[1]]
    assert is_whole(sinks[0]) and is_whole(sinks[2])
    assert sum(file.stat().st_size for file in held.files) < SIZE + 1000 * len(UNITS)
