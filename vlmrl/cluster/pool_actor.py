"""The actor of a pool on other machines: a machine with CPUs runs calls in a deadline pool of its own.

Graders and decoders are such actors. Calls and results are opaque to them, but for their large bytes,
which Ray does not carry: an actor fetches those of a call before its time begins, and lends out those of
results.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

from vlmrl.cluster.large_bytes.folder import Folder
from vlmrl.cluster.large_bytes.lending import Reference, Server
from vlmrl.cluster.large_bytes.packing import Desk
from vlmrl.cluster.ray_host import own_address
from vlmrl.system.deadline_pool import DeadlinePool
from vlmrl.system.launched import parent_watch

__all__ = ["Outcome", "PoolActor", "SentCall"]

PART_S = 0.25
"""Seconds after which what is done of a chunk is returned, though a call of it may still run."""
BEAT_S = 5.0
"""Most seconds between two words from an actor that works."""

Outcome = tuple[int, BaseException | None, bytes]
"""A call's number in its chunk, what it raised, and else what it returned, packed."""


class SentCall(NamedTuple):
    """A call on its way to an actor."""

    packed: bytes
    """Function and arguments."""
    deadline: float
    """Seconds that it may take once begun."""
    references: list[Reference]
    """Its large bytes."""


class PoolActor:
    """Runs calls in deadline pools of its own."""

    def __init__(self, folder: str) -> None:
        """Work in `folder`, the driver's, where this machine has it: users' paths then mean the same."""
        parent_watch.end_with(os.getppid())  # the node's raylet
        if os.path.isdir(folder):
            os.chdir(folder)
        kept = Folder.of_machine()
        server = Server(kept.read, own_address())
        self._desk = Desk(kept, server.url, server.token)
        self._pools: dict[bytes, DeadlinePool] = {}
        self._lock = threading.Lock()

    def node(self) -> str:
        """Return the name of the machine; that it answers says that it lives."""
        return socket.gethostname()

    def run(self, pool: bytes, calls: Sequence[SentCall]) -> Iterator[list[Outcome]]:
        """Yield what becomes of the calls, in parts as they are done, or nothing as a sign of life.

        `pool`: the arguments of `DeadlinePool`, pickled; all that name the same ones share a pool.

        Raises:
            OSError: the large bytes of a call cannot be fetched.
        """
        workers = self._pool(pool)
        waiting: dict[Future[bytes], int] = {}
        said = time.monotonic()
        brought: set[str] = set()
        for number, call in enumerate(calls):
            for reference in call.references:
                if reference.name not in brought:
                    self._desk.bring(reference)
                    brought.add(reference.name)
                if time.monotonic() - said > BEAT_S:
                    said = time.monotonic()
                    yield []
            future = workers.submit(_call, self._desk, call.packed, deadline=call.deadline)
            waiting[future] = number
        while waiting:
            done = wait(waiting, PART_S).done
            if done or time.monotonic() - said > BEAT_S:
                said = time.monotonic()
                yield [_outcome(waiting.pop(future), future) for future in done]

    def _pool(self, made: bytes) -> DeadlinePool:
        with self._lock:
            if made not in self._pools:
                self._pools[made] = DeadlinePool(*pickle.loads(made))
            return self._pools[made]


def _call(desk: Desk, packed: bytes) -> bytes:
    """Do a call in a worker."""
    function, arguments = desk.unpack(packed)
    return desk.pack(function(*arguments))


def _outcome(number: int, future: Future[bytes]) -> Outcome:
    error = future.exception()
    return number, error, b"" if error else future.result()
