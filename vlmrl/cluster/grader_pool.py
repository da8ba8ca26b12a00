"""Verifiers on other machines: a pool whose calls run in Grader actors, each with a deadline pool.

What a call is and what may go wrong with it stays as in `deadline_pool`: a grader kills what hangs
on its own machine, and the words of the fault are the same. A grader that dies with its node costs
nothing but time: its calls are asked for again elsewhere, and no result is taken twice. Arguments
and results are opaque to the grader itself: only its workers read them.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from vlmrl.errors import UserError
from vlmrl.scoring.calls import MakePool
from vlmrl.system.deadline_pool import DeadlinePool
from vlmrl.system.extras import import_extra
from vlmrl.system.launched import parent_watch

__all__ = ["Grader", "RayPool", "pool_maker", "start_graders"]

RESOURCE = "vlmrl_cpu"
"""Ray's custom resource of the nodes that run graders, one a worker process: `--resources`. Graders
take no `num_cpus`, which an actor would hold for life and other tasks would wait for in silence."""
CHUNK = 50
"""Most calls that are sent to a grader at once."""
SMALL = 10
"""Calls that are not worth sharing among graders."""
PLACES = 2
"""Chunks under way to one grader, so that it is not idle while one travels."""
THREADS = 64
"""Calls of a grader's methods at a time: the chunks of all ranks, and looks at whether it lives."""
GATHER_S = 0.02
"""Seconds that the first call of a chunk waits for others."""
PART_S = 0.25
"""Seconds after which what is done of a chunk is returned, though a call of it may still run."""
BEAT_S = 5.0
"""Most seconds between two words from a grader that works."""
SILENT_S = 60.0
"""Seconds of silence after which a grader counts as lost; Ray may notice its death earlier."""
LOOK_S = 1.0
"""Seconds of waiting after which a thread looks whether the pool was closed."""
MAX_TRIES = 5
"""Graders that may be lost with one call before it fails: it may be what kills them."""
NONE_S = 600.0
"""Seconds without any grader after which all calls fail."""

log = logging.getLogger("vlmrl")

Outcome = tuple[int, BaseException | None, bytes]
"""A call's number in its chunk, what it raised, and else what it returned, pickled."""


# ------------------------------------------------------------------------------- on the other machine


class Grader:
    """An actor on a machine with CPUs: runs calls in a deadline pool of its own."""

    def __init__(self, folder: str) -> None:
        """Work in `folder`, the driver's, where this machine has it: users' paths then mean the same."""
        parent_watch.end_with(os.getppid())  # the node's raylet
        if os.path.isdir(folder):
            os.chdir(folder)
        self._pools: dict[bytes, DeadlinePool] = {}
        self._lock = threading.Lock()

    def node(self) -> str:
        """Return the name of the machine; that it answers says that it lives."""
        return socket.gethostname()

    def run(self, pool: bytes, calls: Sequence[tuple[bytes, float]]) -> Iterator[list[Outcome]]:
        """Yield what becomes of the calls, in parts as they are done, or nothing as a sign of life.

        `pool`: the arguments of `DeadlinePool`, pickled; all that name the same ones share a pool.
        `calls`: function and arguments, pickled, and the seconds that the call may take.
        """
        workers = self._pool(pool)
        waiting = {
            workers.submit(_call, call, deadline=deadline): number
            for number, (call, deadline) in enumerate(calls)
        }
        said = time.monotonic()
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


def _call(call: bytes) -> bytes:
    """Do a call in a worker."""
    function, arguments = pickle.loads(call)
    return pickle.dumps(function(*arguments))


def _outcome(number: int, future: Future[bytes]) -> Outcome:
    error = future.exception()
    return number, error, b"" if error else future.result()


# ------------------------------------------------------------------------------------- in the driver


def start_graders(count: int, workers: int, namespace: str) -> list[Any]:
    """Ask Ray for graders of `workers` processes each; they end with this process, a driver of Ray.

    Returns at once: a grader that finds no room now starts when a node with room joins, and one whose
    node is lost starts again elsewhere.
    """
    ray = import_extra("ray", "ray")
    return [
        ray.remote(Grader)
        .options(
            name=_name(number),
            namespace=namespace,
            num_cpus=0,
            resources={RESOURCE: workers},
            max_restarts=-1,
            max_concurrency=THREADS,
        )
        .remote(os.getcwd())
        for number in range(count)
    ]


def _name(number: int) -> str:
    return f"grader-{number}"


# ---------------------------------------------------------------------------------------- in a rank


def pool_maker(count: int, namespace: str) -> MakePool:
    """Return what makes a pool of the `count` graders that were started in this namespace."""
    ray = import_extra("ray", "ray")

    def make(workers: int, prepare: Callable[[], None] | None, max_memory: int | None) -> RayPool:
        graders = [ray.get_actor(_name(number), namespace) for number in range(count)]
        return RayPool(graders, workers, prepare, max_memory)

    return make


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is not done: what to call, the caller's future, and how often it was sent."""

    pickled: bytes
    deadline: float
    future: Future[Any] = field(default_factory=Future)
    sent: int = 0


class RayPool:
    """A pool as `DeadlinePool` is one, whose calls run in graders. `close` it; the graders stay.

    `lost` counts the calls that were asked for again because their grader was lost.
    """

    def __init__(
        self,
        graders: Sequence[Any],
        workers: int,
        prepare: Callable[[], None] | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Use these actors, whichever of them live; the rest as in `DeadlinePool`, for each of them."""
        self._ray = import_extra("ray", "ray")
        self.lost = 0
        self._made = pickle.dumps((workers, prepare, max_memory))
        self._waiting: deque[_Call] = deque()
        self._open: set[_Call] = set()
        self._changed = threading.Condition()
        self._closed = self._hopeless = False
        self._up: set[int] = set()
        self._last_up = time.monotonic()
        for number, grader in enumerate(graders):
            for _ in range(PLACES):
                serve = functools.partial(self._serve, number, grader)
                threading.Thread(target=serve, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun.

        Raises:
            UserError: there has been no grader for long.
        """
        call = _Call(pickle.dumps((function, arguments)), deadline)
        with self._changed:
            if self._hopeless:
                raise UserError(_nobody())
            self._open.add(call)
            self._waiting.append(call)
            self._changed.notify()
        return call.future

    def close(self) -> None:
        """Give up what runs; a thread that waits for a result gets CancelledError."""
        with self._changed:
            self._closed = True
            calls, self._open = self._open, set()
            self._waiting.clear()
            self._changed.notify_all()
        for call in calls:
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()  # wakes who waits

    def _serve(self, number: int, grader: Any) -> None:
        """Send chunks to one grader, one after the other, as long as the pool is open."""
        while self._wait_for(number, grader) and (chunk := self._take()):
            calls = dict(enumerate(chunk))
            try:
                self._ask(grader, calls)
            except (self._ray.exceptions.RayError, StopIteration, TimeoutError) as error:
                self._put_back(number, list(calls.values()), error)

    def _wait_for(self, number: int, grader: Any) -> bool:
        """Return True as soon as the grader answers, False when the pool is closed."""
        if number in self._up:
            return not self._closed
        while not self._closed:
            try:
                asked, since = grader.node.remote(), time.monotonic()
                while not self._closed and time.monotonic() - since < SILENT_S:
                    if self._ray.wait([asked], timeout=LOOK_S)[0]:
                        node = self._ray.get(asked, timeout=LOOK_S)
                        log.info("grader %d is on %s", number, node)
                        self._up.add(number)
                        return True
                    self._look_for_graders()
            except self._ray.exceptions.RayError:
                time.sleep(LOOK_S)
                self._look_for_graders()
        return False

    def _look_for_graders(self) -> None:
        """Fail all calls if there has been no grader for long."""
        with self._changed:
            if self._up:
                self._last_up = time.monotonic()
            if time.monotonic() - self._last_up < NONE_S or self._hopeless:
                return
            self._hopeless = True
            self._waiting.clear()
        self._fail(list(self._open), _nobody())

    def _take(self) -> list[_Call]:
        """Wait for calls and return the next chunk; an empty one when the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._changed.wait_for(lambda: len(self._waiting) >= CHUNK or self._closed, GATHER_S)
            share = -(-len(self._waiting) // max(1, len(self._up)))
            count = min(len(self._waiting), CHUNK, max(SMALL, share))
            return [self._waiting.popleft() for _ in range(count)]

    def _ask(self, grader: Any, calls: dict[int, _Call]) -> None:
        """Send a chunk and settle its calls as they are done; `calls` keeps those that are not.

        Raises:
            RayError: the grader is lost.
            StopIteration: it ended early.
            TimeoutError: it says nothing.
        """
        for call in calls.values():
            call.sent += 1
        parts = grader.run.remote(self._made, [(c.pickled, c.deadline) for c in calls.values()])
        heard = time.monotonic()
        while calls and not self._closed:
            if not self._ray.wait([parts], timeout=LOOK_S)[0]:
                if time.monotonic() - heard > SILENT_S:
                    raise TimeoutError(f"no word for {SILENT_S:g} s")
                continue
            heard = time.monotonic()
            for number, error, value in self._ray.get(next(parts), timeout=SILENT_S):
                self._settle(calls.pop(number), error, value)

    def _claim(self, call: _Call) -> bool:
        """Return whether the call's result is still asked for, and from now on nobody else's to give."""
        with self._changed:
            if call not in self._open:
                return False
            self._open.discard(call)
        return call.future.set_running_or_notify_cancel()

    def _settle(self, call: _Call, error: BaseException | None, value: bytes) -> None:
        if not self._claim(call):
            return
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(pickle.loads(value))

    def _put_back(self, number: int, calls: Sequence[_Call], error: BaseException) -> None:
        """Let calls whose grader was lost be sent to another, first; one that lost many fails."""
        self._up.discard(number)
        if self._closed:
            return
        again = [call for call in calls if call.sent < MAX_TRIES]
        log.warning(
            "grader %d was lost: %d calls are asked for again elsewhere (%s)",
            number, len(again), next(iter(str(error).splitlines()), type(error).__name__),
        )  # fmt: skip
        with self._changed:
            self.lost += len(again)
            self._waiting.extendleft(reversed(again))
            self._changed.notify_all()
        kept = set(again)
        rest = [call for call in calls if call not in kept]
        self._fail(rest, f"its grader was lost {MAX_TRIES} times: {error}")

    def _fail(self, calls: Sequence[_Call], why: str) -> None:
        for call in calls:
            if self._claim(call):
                call.future.set_exception(BrokenProcessPool(why))


def _nobody() -> str:
    return (
        f"there has been no grader for {NONE_S:g} s: cluster.graders needs nodes that were started with "
        f"--resources='{{\"{RESOURCE}\": N}}', N at least scoring.workers"
    )
