"""Verifiers on other machines: a pool whose calls run in actors of Ray, each with a deadline pool.

What a call is and what may go wrong with it stays as in `deadline_pool`: an actor kills what hangs on its
own machine, and the words of the fault are the same. Ray carries the calls, notices that an actor is lost,
and starts it again where there is room. Its calls do not wait for that: they are sent to the others, and
count once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from vlmrl.errors import UserError, import_extra
from vlmrl.system import distributed, processes
from vlmrl.system.deadline_pool import DeadlinePool, MakePool

RESOURCE = "vlmrl_cpu"
"""Ray's custom resource of the nodes that run graders, one a worker process: `--resources`. They take no
`num_cpus`, which an actor would hold for life and other tasks would wait for in silence."""
AHEAD = 4
"""Calls that a rank has under way with a grader, by its processes: none is idle while a call travels, and
a grader that joins late still finds calls to take."""
RETRY_S = 1.0
MAX_TRIES = 5
"""Graders that may be lost with one call before it fails: it may be what kills them."""
NONE_S = 600.0
"""Seconds without any grader after which all calls fail."""
NOBODY = (
    f"there has been no grader for {NONE_S:g} s: cluster.graders needs nodes that were started with "
    f"--resources='{{\"{RESOURCE}\": N}}', N at least scoring.workers"
)

log = logging.getLogger("vlmrl")


# ------------------------------------------------------------------------------- on the other machine


class Grader:
    """Runs calls in deadline pools of its own."""

    def __init__(self, folder: str) -> None:
        """Work in `folder`, the driver's, where this machine has it: users' paths then mean the same."""
        processes.end_with(os.getppid())  # the node's raylet
        if os.path.isdir(folder):
            os.chdir(folder)
        self._pools: dict[bytes, DeadlinePool] = {}

    async def node(self) -> str:
        """Return the name of the machine; that it answers says that it lives."""
        return socket.gethostname()

    async def judge(
        self, pool: bytes, call: bytes, deadline: float
    ) -> tuple[Exception | None, bytes]:
        """Return what a pickled call raised, and else what it returned, pickled.

        `pool`: the arguments of `DeadlinePool`, pickled; all ranks that name the same ones share a pool.
        """
        if pool not in self._pools:
            self._pools[pool] = DeadlinePool(*pickle.loads(pool))
        try:
            future = self._pools[pool].submit(_call, call, deadline=deadline)
            return None, await asyncio.wrap_future(future)
        except Exception as error:  # it is the call's, and goes to who asked
            return error, b""


def _call(call: bytes) -> bytes:
    function, arguments = pickle.loads(call)
    return pickle.dumps(function(*arguments))


# ------------------------------------------------------------------------------------- in the driver


def start_graders(count: int, workers: int, namespace: str) -> list[Any]:
    """Ask Ray for graders of `workers` processes each; they end with this process, a driver of Ray.

    Returns at once: one that finds no room now starts when a node with room joins, and one whose
    node is lost starts again elsewhere.
    """
    ray = import_extra("ray", "ray")
    options = {"num_cpus": 0, "resources": {RESOURCE: workers}, "max_restarts": -1}
    make = ray.remote(Grader)
    return [
        make.options(name=f"grader-{number}", namespace=namespace, **options).remote(os.getcwd())
        for number in range(count)
    ]


# ---------------------------------------------------------------------------------------- in a rank


def pool_maker(count: int, namespace: str) -> MakePool:
    """Return what makes a pool of the `count` graders that were started in this namespace."""
    ray = import_extra("ray", "ray")

    def make(workers: int, prepare: Callable[[], None] | None, max_memory: int | None) -> RayPool:
        graders = [ray.get_actor(f"grader-{number}", namespace) for number in range(count)]
        return RayPool(graders, workers, prepare, max_memory)

    return make


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is not done: what to call, the caller's future, and how often it was sent."""

    packed: bytes
    deadline: float
    future: Future[Any] = field(default_factory=Future)
    sent: int = 0


@dataclass(eq=False, slots=True)
class _Seat:
    """A grader as this rank sees it: whether it answers, and the calls under way with it."""

    actor: Any
    up: bool = False
    load: int = 0


class RayPool:
    """A pool as `DeadlinePool` is one, whose calls run in graders. `close` it; the graders stay."""

    def __init__(
        self,
        graders: Sequence[Any],
        workers: int,
        prepare: Callable[[], None] | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Use these graders, whichever of them live; the rest as in `DeadlinePool`, for each of them."""
        self._pool = pickle.dumps((workers, prepare, max_memory))
        self._ahead = AHEAD * workers
        first = distributed.rank() % max(1, len(graders))  # so that not all ranks begin with one
        self._seats = [_Seat(grader) for grader in [*graders[first:], *graders[:first]]]
        self._waiting: deque[_Call] = deque()
        self._open: set[_Call] = set()
        self._closed = self._hopeless = False
        self._lock = threading.RLock()
        # What Ray's thread does when an answer comes: it must not be the one that sends.
        self._answers = ThreadPoolExecutor(1)
        self._doubt: threading.Timer | None = None
        self._begin_to_doubt()
        for seat in self._seats:
            self._greet(seat)

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun.

        Raises:
            UserError: there has been no grader for long.
        """
        call = _Call(pickle.dumps((function, arguments)), deadline)
        with self._lock:
            if self._hopeless:
                raise UserError(NOBODY)
            self._open.add(call)
            self._waiting.append(call)
            self._send()
        return call.future

    def close(self) -> None:
        """Give up what runs; a thread that waits for a result gets CancelledError."""
        with self._lock:
            self._closed = True
            calls, self._open = self._open, set()
            self._waiting.clear()
        if self._doubt is not None:
            self._doubt.cancel()
        self._answers.shutdown(wait=False)
        for call in calls:
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()  # wakes who waits

    def _send(self) -> None:
        """Send waiting calls to the graders that have the fewest, as far as these have room."""
        while self._waiting and (up := [seat for seat in self._seats if seat.up]):
            seat = min(up, key=lambda each: each.load)
            if seat.load >= self._ahead:
                return
            call = self._waiting.popleft()
            call.sent += 1
            seat.load += 1
            answer = seat.actor.judge.remote(self._pool, call.packed, call.deadline)
            self._when_done(answer, self._settle, seat, call)

    def _when_done(self, answer: Any, react: Callable[..., None], *arguments: Any) -> None:
        def hand_over(done: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the pool was closed
                self._answers.submit(react, done, *arguments)

        answer.future().add_done_callback(hand_over)

    def _settle(self, done: Future[Any], seat: _Seat, call: _Call) -> None:
        """Hand on what became of a call; one whose grader was lost is sent again."""
        lost = done.exception()
        with self._lock:
            seat.load -= 1
            if lost is not None:
                self._leave(seat, lost)
                if call in self._open and call.sent < MAX_TRIES:
                    self._waiting.appendleft(call)
            self._send()
        if lost is None:
            self._finish(call, *done.result())
        elif call.sent >= MAX_TRIES:
            self._finish(call, BrokenProcessPool(f"its grader was lost {MAX_TRIES} times: {lost}"))

    def _finish(self, call: _Call, error: Exception | None, packed: bytes = b"") -> None:
        with self._lock:
            if call not in self._open:
                return
            self._open.discard(call)
        if not call.future.set_running_or_notify_cancel():
            return
        try:
            value = None if error else pickle.loads(packed)
        except Exception as unreadable:  # the verdict's class is not here, say
            error = unreadable
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(value)

    def _greet(self, seat: _Seat) -> None:
        """Wait for a word of a grader, which says that it has a place, or has one again."""
        if not self._closed:
            self._when_done(seat.actor.node.remote(), self._welcome, seat)

    def _welcome(self, done: Future[Any], seat: _Seat) -> None:
        if done.exception() is not None:
            again = threading.Timer(RETRY_S, functools.partial(self._greet, seat))
            again.daemon = True
            again.start()
            return
        log.info("a grader is on %s", done.result())
        with self._lock:
            seat.up = True
            if self._doubt is not None:
                self._doubt.cancel()
            self._send()

    def _leave(self, seat: _Seat, lost: BaseException) -> None:
        """Send nothing more to a grader that was lost until it answers again."""
        if not seat.up or self._closed:
            return
        seat.up = False
        words = next(iter(str(lost).splitlines()), type(lost).__name__)
        log.warning("a grader was lost: its calls are asked for again elsewhere (%s)", words)
        if not any(each.up for each in self._seats):
            self._begin_to_doubt()
        self._greet(seat)

    def _begin_to_doubt(self) -> None:
        self._doubt = threading.Timer(NONE_S, self._give_up)
        self._doubt.daemon = True
        self._doubt.start()

    def _give_up(self) -> None:
        """Fail all calls: there has been no grader for long."""
        with self._lock:
            if self._closed or any(seat.up for seat in self._seats):
                return
            self._hopeless = True
            self._waiting.clear()
            calls = [*self._open]
        for call in calls:
            self._finish(call, BrokenProcessPool(NOBODY))
