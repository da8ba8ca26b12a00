"""Weights over TCP: only who knows the secret is sent them, and only the announced ones are used."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vlmrl.engines.vllm_parts import stream

WEIGHTS = {
    "embed.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "scale": torch.tensor(2.5),
    "nothing": torch.empty(0, 4),
    "head.weight": torch.arange(200_000, dtype=torch.float32),
}


def listed(weights: dict[str, torch.Tensor]) -> tuple[list[Any], ...]:
    tensors = weights.values()
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    digests = [stream.digest_of(t) for t in tensors]
    return list(weights), dtypes, [list(t.shape) for t in tensors], digests


@contextmanager
def sending(
    weights: dict[str, torch.Tensor], workers: int = 1, timeout: float = 10.0
) -> Iterator[tuple[stream.Meeting, Future[None]]]:
    with (
        stream.accepting("127.0.0.1", timeout) as (listener, meeting),
        ThreadPoolExecutor(1) as pool,
    ):
        yield meeting, pool.submit(stream.send, listener, meeting, workers, weights.values())


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(10.0)
    try:
        return b"".join(iter(lambda: connection.recv(65536), b""))
    except ConnectionError:
        return b""


def test_every_worker_gets_every_weight() -> None:
    with sending(WEIGHTS, workers=2) as (meeting, sent), ThreadPoolExecutor(2) as pool:
        got = [pool.submit(lambda: list(stream.receive(meeting, *listed(WEIGHTS)))) for _ in "ab"]
        for worker in got:
            for name, tensor in worker.result():
                assert tensor.dtype == WEIGHTS[name].dtype and torch.equal(tensor, WEIGHTS[name])
        sent.result()


def test_a_stranger_who_connects_first_is_sent_nothing_and_the_worker_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with sending(WEIGHTS) as (meeting, sent):
        with socket.create_connection((meeting.address, meeting.port)) as stranger:
            assert len(stranger.recv(stream.SIZE, socket.MSG_WAITALL)) == stream.SIZE
            stranger.sendall(bytes(stream.SIZE))
            assert read_all(stranger) == b""
        got = dict(stream.receive(meeting, *listed(WEIGHTS)))
        sent.result()
    assert list(got) == list(WEIGHTS)
    assert "127.0.0.1 connected without this update's secret and is refused" in caplog.text


def test_who_has_another_secret_is_sent_nothing() -> None:
    with sending(WEIGHTS) as (meeting, sent):
        other = dataclasses.replace(meeting, secret="00" * stream.SIZE)
        with pytest.raises(OSError, match="closed"):
            list(stream.receive(other, *listed(WEIGHTS)))
        list(stream.receive(meeting, *listed(WEIGHTS)))
        sent.result()


@pytest.mark.parametrize("drips", [b"", b"x"], ids=["silent", "dripping"])
def test_a_stranger_who_proves_nothing_holds_the_worker_up_for_a_moment_only(
    drips: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PROOF_S", 0.2)
    with sending(WEIGHTS) as (meeting, sent):
        with socket.create_connection((meeting.address, meeting.port)) as stranger:
            stranger.sendall(drips)
            start = time.monotonic()
            list(stream.receive(meeting, *listed(WEIGHTS)))
            sent.result()
        assert time.monotonic() - start < 5


def test_weights_that_are_not_the_announced_ones_are_refused_by_name() -> None:
    forged = {**WEIGHTS, "scale": torch.tensor(666.0)}
    with sending(forged) as (meeting, _):
        got = stream.receive(meeting, *listed(WEIGHTS))
        assert next(got)[0] == "embed.weight"
        with pytest.raises(ValueError, match="weight 'scale': the bytes that came are not those"):
            next(got)


def test_a_stranger_in_the_trainers_place_cannot_feed_weights() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        meeting = stream.Meeting("127.0.0.1", listener.getsockname()[1], "11" * 32, 10.0)
        worker = pool.submit(lambda: list(stream.receive(meeting, *listed(WEIGHTS))))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(stream.SIZE) + bytes(12))
        with pytest.raises(ValueError, match=r"weight 'embed\.weight'"):
            worker.result()


def test_without_workers_it_ends_in_time_and_at_once_when_the_server_has_answered() -> None:
    with sending(WEIGHTS, timeout=0.1) as (_, sent), pytest.raises(TimeoutError):
        sent.result()
    with stream.accepting("127.0.0.1", 60.0) as (listener, meeting), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stream.send, listener, meeting, 1, WEIGHTS.values())
        time.sleep(0.1)
        stream.stop(listener)
        with pytest.raises(OSError, match="Invalid argument"):
            waiting.result(10)


def test_it_listens_on_the_named_address_only() -> None:
    with stream.accepting("127.0.0.1", 1.0) as (listener, meeting):
        assert listener.getsockname()[0] == meeting.address == "127.0.0.1"
