"""Weights over TCP: only who knows the secret is sent them, only the announced ones are used, and each
leaves the trainer once."""

from __future__ import annotations

import dataclasses
import hmac
import json
import socket
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch

from helpers.counting import Counting
from vlmrl.engines.vllm_parts import transfer

WEIGHTS = {
    "embed.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "scale": torch.tensor(2.5),
    "nothing": torch.empty(0, 4),
    "head.weight": torch.arange(200_000, dtype=torch.float32),
}


def listed(weights: dict[str, torch.Tensor]) -> tuple[list[Any], ...]:
    tensors = weights.values()
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    digests = [transfer.digest_of(t) for t in tensors]
    return list(weights), dtypes, [list(t.shape) for t in tensors], digests


@contextmanager
def sending(
    weights: dict[str, torch.Tensor],
    workers: tuple[int, ...] = (1,),
    timeout: float = 10.0,
    over: Collection[int] = (),
) -> Iterator[tuple[transfer.Meeting, Future[None]]]:
    """Send to `workers` workers of each server."""
    with (
        transfer.accepting("127.0.0.1", timeout) as (listener, meeting),
        ThreadPoolExecutor(1) as pool,
    ):
        given = meeting, workers, over, weights.values()
        yield meeting, pool.submit(transfer.send_by_tcp, Counting.of(listener), *given)


def received(meeting: transfer.Meeting, weights: dict[str, torch.Tensor], server: int = 0) -> Any:
    return transfer.receive_by_tcp(dataclasses.replace(meeting, server=server), *listed(weights))


def assert_whole(got: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> None:
    assert list(got) == list(weights)
    for name, tensor in got.items():
        assert tensor.dtype == weights[name].dtype and torch.equal(tensor, weights[name])


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(10.0)
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionError:
        return b""


def size_of(weights: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


LARGE = {f"layer.{n}": torch.randn(2**21) for n in range(4)}
"""More than the sockets of a connection hold."""


@pytest.mark.parametrize("workers", [(1,), (1, 1, 1), (2, 1)], ids=str)
def test_every_worker_gets_every_weight_and_each_leaves_the_trainer_once(
    workers: tuple[int, ...],
) -> None:
    of_each = [server for server, count in enumerate(workers) for _ in range(count)]
    with sending(WEIGHTS, workers) as (meeting, sent), ThreadPoolExecutor(3) as pool:
        got = [pool.submit(lambda n: dict(received(meeting, WEIGHTS, n)), n) for n in of_each]
        for worker in got:
            assert_whole(worker.result(), WEIGHTS)
        sent.result()
    most = size_of(WEIGHTS) + 300 * len(of_each)  # and a secret handshake with each
    assert size_of(WEIGHTS) < Counting.sent < most


def test_a_worker_that_dies_fails_those_behind_it_and_no_other() -> None:
    def die(meeting: transfer.Meeting) -> None:
        got = received(meeting, LARGE, server=1)
        next(got), next(got)
        got.close()

    with sending(LARGE, (1, 1, 1)) as (meeting, sent), ThreadPoolExecutor(3) as pool:
        before = pool.submit(lambda: dict(received(meeting, LARGE, 0)))
        pool.submit(die, meeting)
        behind = {}
        with pytest.raises(OSError, match=r"closed|reset"):
            for name, tensor in received(meeting, LARGE, 2):
                behind[name] = tensor
        assert_whole(before.result(), LARGE)
        sent.result()
    assert len(behind) < len(LARGE)
    assert all(torch.equal(tensor, LARGE[name]) for name, tensor in behind.items())


def test_a_worker_that_hangs_is_given_up_by_the_one_before_it_alone() -> None:
    with (
        sending(LARGE, (1, 1, 1, 1), timeout=4.0) as (meeting, sent),
        ThreadPoolExecutor(4) as pool,
    ):
        before = [pool.submit(lambda n: dict(received(meeting, LARGE, n)), n) for n in (0, 1)]
        hanging = received(meeting, LARGE, server=2)
        behind = pool.submit(lambda: dict(received(meeting, LARGE, 3)))
        next(hanging)  # and takes no more
        for worker in before:
            assert_whole(worker.result(), LARGE)
        sent.result()
        hanging.close()
        with pytest.raises(OSError, match=r"closed|reset"):
            behind.result()


def out_of_reach(meeting: transfer.Meeting, size: int, server: int) -> bytes:
    """Take weights as a worker does, but listen where nobody answers, and reach nobody."""
    with (
        socket.create_connection((meeting.address, meeting.port), 10.0) as trainer,
        trainer.makefile("rb") as heard,
    ):
        secret = bytes.fromhex(meeting.secret)
        trainer.sendall(hmac.digest(secret, heard.read(transfer.SIZE), "sha256"))
        trainer.sendall(server.to_bytes(2) + (1).to_bytes(2))
        place = json.loads(heard.read(transfer.PLACE_BYTES))
        assert (place["before"] is None) == (server == 0)
        trainer.sendall(b"\0")
        assert heard.read(1) == b"\0"
        return heard.read(size)


def test_a_worker_that_cannot_reach_the_one_before_it_is_sent_all_by_the_trainer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = b"".join(bytes(t.reshape(-1).view(torch.uint8).numpy()) for t in WEIGHTS.values())
    with sending(WEIGHTS, (1, 1, 1)) as (meeting, sent), ThreadPoolExecutor(3) as pool:
        middle = pool.submit(out_of_reach, meeting, len(whole), 1)
        ends = [pool.submit(lambda n: dict(received(meeting, WEIGHTS, n)), n) for n in (0, 2)]
        assert middle.result() == whole
        for worker in ends:
            assert_whole(worker.result(), WEIGHTS)
        sent.result()
    assert "cannot reach the one at 127.0.0.1:1, so that the trainer sends to both" in caplog.text
    assert 3 * len(whole) < Counting.sent < 3 * len(whole) + 1000


def test_a_server_that_has_answered_is_not_waited_for() -> None:
    over: set[int] = set()
    with sending(WEIGHTS, (1, 2), over=over) as (meeting, sent), ThreadPoolExecutor(1) as pool:
        worker = pool.submit(lambda: dict(received(meeting, WEIGHTS, 0)))
        over.add(1)
        assert_whole(worker.result(), WEIGHTS)
        sent.result()


def test_a_stranger_who_connects_first_is_sent_nothing_and_the_worker_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with sending(WEIGHTS) as (meeting, sent):
        with socket.create_connection((meeting.address, meeting.port)) as stranger:
            assert len(stranger.recv(transfer.SIZE, socket.MSG_WAITALL)) == transfer.SIZE
            stranger.sendall(bytes(transfer.SIZE))
            assert read_all(stranger) == b""
        got = dict(transfer.receive_by_tcp(meeting, *listed(WEIGHTS)))
        sent.result()
    assert list(got) == list(WEIGHTS)
    assert "127.0.0.1 connected without this update's secret and is refused" in caplog.text


def test_who_has_another_secret_is_sent_nothing() -> None:
    with sending(WEIGHTS) as (meeting, sent):
        other = dataclasses.replace(meeting, secret="00" * transfer.SIZE)
        with pytest.raises(OSError, match=r"closed|reset"):
            list(transfer.receive_by_tcp(other, *listed(WEIGHTS)))
        list(transfer.receive_by_tcp(meeting, *listed(WEIGHTS)))
        sent.result()


@pytest.mark.parametrize("drips", [b"", b"x"], ids=["silent", "dripping"])
def test_a_stranger_who_proves_nothing_holds_the_worker_up_for_a_moment_only(
    drips: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PROOF_S", 0.2)
    with sending(WEIGHTS) as (meeting, sent):
        with socket.create_connection((meeting.address, meeting.port)) as stranger:
            stranger.sendall(drips)
            start = time.monotonic()
            list(transfer.receive_by_tcp(meeting, *listed(WEIGHTS)))
            sent.result()
        assert time.monotonic() - start < 5


def test_any_number_of_silent_strangers_hold_no_worker_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_GUESTS", 32)
    with (
        sending(WEIGHTS, (1, 1)) as (meeting, sent),
        ThreadPoolExecutor(2) as pool,
        ExitStack() as stack,
    ):
        place = meeting.address, meeting.port
        strangers = [stack.enter_context(socket.create_connection(place)) for _ in range(60)]
        start = time.monotonic()
        workers = [pool.submit(lambda n: dict(received(meeting, WEIGHTS, n)), n) for n in (0, 1)]
        for worker in workers:
            assert_whole(worker.result(), WEIGHTS)
        sent.result()
        assert time.monotonic() - start < transfer.PROOF_S
        assert all(len(read_all(stranger)) <= transfer.SIZE for stranger in strangers)


def test_strangers_who_come_for_ever_do_not_outlast_the_time_limit() -> None:
    with sending(WEIGHTS, timeout=0.5) as (meeting, sent), pytest.raises(TimeoutError):
        while not sent.done():
            with suppress(OSError), socket.create_connection((meeting.address, meeting.port)):
                time.sleep(0.01)
        sent.result()


def test_weights_that_are_not_the_announced_ones_are_refused_by_name() -> None:
    forged = {**WEIGHTS, "scale": torch.tensor(666.0)}
    with sending(forged) as (meeting, _):
        got = transfer.receive_by_tcp(meeting, *listed(WEIGHTS))
        assert next(got)[0] == "embed.weight"
        with pytest.raises(ValueError, match="weight 'scale': the bytes that came are not those"):
            next(got)


def test_a_stranger_in_the_trainers_place_cannot_feed_weights() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        meeting = transfer.Meeting("127.0.0.1", listener.getsockname()[1], "11" * 32, 10.0)
        worker = pool.submit(lambda: list(transfer.receive_by_tcp(meeting, *listed(WEIGHTS))))
        connection, _ = listener.accept()
        with connection:
            place = json.dumps({"before": None, "patience": 1.0}).encode()
            connection.sendall(
                bytes(transfer.SIZE) + place.ljust(transfer.PLACE_BYTES) + bytes(1 + 12)
            )
            with pytest.raises(ValueError, match=r"weight 'embed\.weight'"):
                worker.result()


def test_without_workers_it_ends_in_time_and_at_once_when_the_server_has_answered() -> None:
    with sending(WEIGHTS, timeout=0.1) as (_, sent), pytest.raises(TimeoutError):
        sent.result()
    over: set[int] = set()
    with sending(WEIGHTS, timeout=60.0, over=over) as (_, sent):
        time.sleep(0.1)
        over.add(0)
        sent.result(10)


def test_it_listens_on_the_named_address_only() -> None:
    with transfer.accepting("127.0.0.1", 1.0) as (listener, meeting):
        assert listener.getsockname()[0] == meeting.address == "127.0.0.1"
