"""Weights over TCP, from the trainer to the workers of a server that prove that they are its own.

Each update has a secret and digests of its weights; both reach the workers with the server's token.
Who lacks the secret is sent nothing, and bytes that lack their digest are never loaded.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import torch

log = logging.getLogger(__name__)

PROOF_S = 5.0
"""Seconds within which whoever connects must prove that it is a worker."""
SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Meeting:
    """Where the trainer listens during one update, and what proves that one is a worker."""

    address: str
    port: int
    secret: str
    timeout: float
    """Seconds without progress after which either side gives up."""


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a contiguous CPU tensor's bytes, in hexadecimal."""
    return hashlib.sha256(_bytes_of(tensor)).hexdigest()


@contextmanager
def accepting(address: str, timeout: float) -> Iterator[tuple[socket.socket, Meeting]]:
    """Listen on this address only, with a secret made for this one update (OSError: it cannot)."""
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        yield listener, Meeting(address, port, secrets.token_hex(SIZE), timeout)


def send(
    listener: socket.socket, meeting: Meeting, workers: int, tensors: Iterable[torch.Tensor]
) -> None:
    """Send contiguous CPU tensors to `workers` workers; others who connect are logged and sent nothing.

    Raises:
        OSError: a worker did not come, or went.
    """
    with ExitStack() as stack:
        joined = [stack.enter_context(each) for each in _workers(listener, meeting, workers)]
        for tensor in tensors:
            for connection in joined:
                connection.sendall(_bytes_of(tensor))


def stop(listener: socket.socket) -> None:
    """Let `send` wait for nobody any more: the server has answered."""
    with suppress(OSError):  # it was closed meanwhile
        listener.shutdown(socket.SHUT_RDWR)


def receive(
    meeting: Meeting,
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    digests: Sequence[str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an update with their names, each when its digest has been found right.

    Raises:
        OSError: the trainer is gone.
        ValueError: a tensor is not the one that was announced; the message names it.
    """
    with socket.create_connection((meeting.address, meeting.port), meeting.timeout) as trainer:
        challenge = _read(trainer, bytearray(SIZE))
        trainer.sendall(_proof(meeting, challenge))
        for name, dtype, shape, digest in zip(names, dtypes, shapes, digests, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _read(trainer, _bytes_of(tensor))
            if digest_of(tensor) != digest:
                raise ValueError(
                    f"weight {name!r}: the bytes that came are not those that the trainer "
                    "announced (their SHA-256 differs), so it is not loaded"
                )
            yield name, tensor


def _workers(listener: socket.socket, meeting: Meeting, count: int) -> Iterator[socket.socket]:
    """Yield the connections of those who prove that they know the secret."""
    deadline = time.monotonic() + meeting.timeout
    while count:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        connection, (host, *_) = listener.accept()
        if _is_worker(connection, meeting):
            connection.settimeout(meeting.timeout)
            count -= 1
            yield connection
        else:
            connection.close()
            log.warning("weights: %s connected without this update's secret and is refused", host)


def _is_worker(connection: socket.socket, meeting: Meeting) -> bool:
    challenge = secrets.token_bytes(SIZE)
    deadline = time.monotonic() + PROOF_S
    try:
        connection.settimeout(PROOF_S)
        connection.sendall(challenge)
        answer = _read(connection, bytearray(SIZE), deadline)
    except OSError:  # it went, or said nothing
        return False
    return hmac.compare_digest(answer, _proof(meeting, challenge))


def _proof(meeting: Meeting, challenge: bytes | bytearray | memoryview) -> bytes:
    return hmac.digest(bytes.fromhex(meeting.secret), challenge, "sha256")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's own memory, as bytes that can be read and filled."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _read(
    connection: socket.socket, buffer: bytearray | memoryview, deadline: float | None = None
) -> memoryview:
    """Fill a buffer, by the deadline if there is one (OSError: it was not filled)."""
    view, filled = memoryview(buffer), 0
    while filled < len(view):
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        count = connection.recv_into(view[filled:])
        if count == 0:
            raise ConnectionError("the other side closed the connection")
        filled += count
    return view
