"""Verifiers and decoding on other machines: a pool whose calls run in actors with deadline pools.

What a call is and what may go wrong with it stays as in `deadline_pool`: an actor kills what hangs
on its own machine, and the words of the fault are the same. An actor that dies with its node costs
nothing but time: its calls are asked for again elsewhere, and no result is taken twice. Large bytes
of calls and results do not go through Ray (`large_bytes`).
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmrl.cluster.large_bytes.lending import Reference
from vlmrl.cluster.large_bytes.packing import Lender
from vlmrl.cluster.pool_actor import PoolActor, SentCall
from vlmrl.cluster.ray_host import own_address
from vlmrl.errors import UserError
from vlmrl.system import distributed
from vlmrl.system.deadline_pool import MakePool
from vlmrl.system.extras import import_extra

__all__ = ["Kind", "RayPool", "pool_maker", "start_graders"]

Kind = Literal["grader", "decoder"]

RESOURCE = "vlmrl_cpu"
"""Ray's custom resource of the nodes that run graders and decoders, one a worker process:
`--resources`. They take no `num_cpus`, which an actor would hold for life and other tasks would wait
for in silence."""
CHUNK = 50
"""Most calls that are sent to a grader at once. A decoder is sent one, since each takes long."""
SMALL = 10
"""Calls that are not worth sharing among graders."""
PLACES = 2
"""Chunks under way to one grader, so that it is not idle while one travels."""
THREADS = 64
"""Calls of an actor's methods at a time: the chunks of all ranks, and looks at whether it lives."""
GATHER_S = 0.02
"""Seconds that the first call of a chunk waits for others."""
SILENT_S = 60.0
"""Seconds of silence after which an actor counts as lost; Ray may notice its death earlier."""
LOOK_S = 1.0
"""Seconds of waiting after which a thread looks whether the pool was closed."""
MAX_TRIES = 5
"""Actors that may be lost with one call before it fails: it may be what kills them."""
NONE_S = 600.0
"""Seconds without any actor after which all calls fail."""

log = logging.getLogger("vlmrl")


# ------------------------------------------------------------------------------------- in the driver


def start_graders(count: int, workers: int, namespace: str, kind: Kind = "grader") -> list[Any]:
    """Ask Ray for actors of `workers` processes each; they end with this process, a driver of Ray.

    Returns at once: one that finds no room now starts when a node with room joins, and one whose
    node is lost starts again elsewhere.
    """
    ray = import_extra("ray", "ray")
    return [
        ray.remote(PoolActor)
        .options(
            name=_name(kind, number),
            namespace=namespace,
            num_cpus=0,
            resources={RESOURCE: workers},
            max_restarts=-1,
            max_concurrency=THREADS,
        )
        .remote(os.getcwd())
        for number in range(count)
    ]


def _name(kind: Kind, number: int) -> str:
    return f"{kind}-{number}"


# ---------------------------------------------------------------------------------------- in a rank


def pool_maker(count: int, namespace: str, kind: Kind = "grader") -> MakePool:
    """Return what makes a pool of the `count` actors that were started in this namespace."""
    ray = import_extra("ray", "ray")

    def make(workers: int, prepare: Callable[[], None] | None, max_memory: int | None) -> RayPool:
        actors = [ray.get_actor(_name(kind, number), namespace) for number in range(count)]
        return RayPool(actors, workers, prepare, max_memory, kind)

    return make


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is not done: what to call, the caller's future, and how often it was sent."""

    packed: bytes
    references: list[Reference]
    deadline: float
    future: Future[Any] = field(default_factory=Future)
    sent: int = 0


class RayPool:
    """A pool as `DeadlinePool` is one, whose calls run in actors. `close` it; the actors stay.

    `lost` counts the calls that were asked for again because their actor was lost.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        workers: int,
        prepare: Callable[[], None] | None = None,
        max_memory: int | None = None,
        kind: Kind = "grader",
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
        self._kind, self._lender = kind, Lender(own_address())
        self._chunk, self._small = (CHUNK, SMALL) if kind == "grader" else (1, 1)
        world, places = distributed.world(), PLACES
        if kind == "decoder":  # what is sent beyond its processes only waits there
            places += workers // world
        order = [*enumerate(actors)]
        first = distributed.rank() % max(1, len(order))  # so that not all ranks begin with one
        for _, (number, actor) in itertools.product(range(places), order[first:] + order[:first]):
            serve = functools.partial(self._serve, number, actor)
            threading.Thread(target=serve, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun.

        Raises:
            UserError: there has been no actor for long.
        """
        call = _Call(*self._lender.pack((function, arguments)), deadline)
        with self._changed:
            if self._hopeless:
                raise UserError(self._nobody())
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
        self._lender.close()
        for call in calls:
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()  # wakes who waits

    def _serve(self, number: int, actor: Any) -> None:
        """Send chunks to one actor, one after the other, as long as the pool is open."""
        while self._wait_for(number, actor) and (chunk := self._take()):
            calls = dict(enumerate(chunk))
            try:
                self._ask(actor, calls)
            except (self._ray.exceptions.RayError, StopIteration, OSError) as error:
                self._put_back(number, list(calls.values()), error)

    def _wait_for(self, number: int, actor: Any) -> bool:
        """Return True as soon as the actor answers, False when the pool is closed."""
        if number in self._up:
            return not self._closed
        while not self._closed:
            try:
                asked, since = actor.node.remote(), time.monotonic()
                while not self._closed and time.monotonic() - since < SILENT_S:
                    if self._ray.wait([asked], timeout=LOOK_S)[0]:
                        node = self._ray.get(asked, timeout=LOOK_S)
                        log.info("%s %d is on %s", self._kind, number, node)
                        self._up.add(number)
                        return True
                    self._look_for_actors()
            except self._ray.exceptions.RayError:
                time.sleep(LOOK_S)
                self._look_for_actors()
        return False

    def _look_for_actors(self) -> None:
        """Fail all calls if there has been no actor for long."""
        with self._changed:
            if self._up:
                self._last_up = time.monotonic()
            if time.monotonic() - self._last_up < NONE_S or self._hopeless:
                return
            self._hopeless = True
            self._waiting.clear()
        self._fail(list(self._open), self._nobody())

    def _take(self) -> list[_Call]:
        """Wait for calls and return the next chunk; an empty one when the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._changed.wait_for(
                lambda: len(self._waiting) >= self._chunk or self._closed, GATHER_S
            )
            share = -(-len(self._waiting) // max(1, len(self._up)))
            count = min(len(self._waiting), self._chunk, max(self._small, share))
            return [self._waiting.popleft() for _ in range(count)]

    def _ask(self, actor: Any, calls: dict[int, _Call]) -> None:
        """Send a chunk and settle its calls as they are done; `calls` keeps those that are not.

        Raises:
            RayError: the actor is lost, or cannot fetch the large bytes of a call.
            StopIteration: it ended early.
            OSError: it says nothing, or its machine does not give the large bytes of a result.
        """
        for call in calls.values():
            call.sent += 1
        sent = [SentCall(c.packed, c.deadline, c.references) for c in calls.values()]
        parts = actor.run.remote(self._made, sent)
        heard = time.monotonic()
        while calls and not self._closed:
            if not self._ray.wait([parts], timeout=LOOK_S)[0]:
                if time.monotonic() - heard > SILENT_S:
                    raise TimeoutError(f"no word for {SILENT_S:g} s")
                continue
            heard = time.monotonic()
            for number, error, value in self._ray.get(next(parts), timeout=SILENT_S):
                found = None if error else self._lender.unpack(value)
                self._settle(calls.pop(number), error, found)

    def _claim(self, call: _Call) -> bool:
        """Return whether the call's result is still asked for, and from now on nobody else's to give."""
        with self._changed:
            if call not in self._open:
                return False
            self._open.discard(call)
        self._lender.give_back(call.references)
        return call.future.set_running_or_notify_cancel()

    def _settle(self, call: _Call, error: BaseException | None, found: Any) -> None:
        if not self._claim(call):
            return
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(found)

    def _put_back(self, number: int, calls: Sequence[_Call], error: BaseException) -> None:
        """Let calls whose actor was lost be sent to another, first; one that lost many fails."""
        self._up.discard(number)
        if self._closed:
            return
        again = [call for call in calls if call.sent < MAX_TRIES]
        why = getattr(error, "cause", None) or error  # what the actor raised
        log.warning(
            "%s %d was lost: %d calls are asked for again elsewhere (%s)", self._kind,
            number, len(again), next(iter(str(why).splitlines()), type(why).__name__),
        )  # fmt: skip
        with self._changed:
            self.lost += len(again)
            self._waiting.extendleft(reversed(again))
            self._changed.notify_all()
        kept = set(again)
        rest = [call for call in calls if call not in kept]
        self._fail(rest, f"its {self._kind} was lost {MAX_TRIES} times: {why}")

    def _fail(self, calls: Sequence[_Call], why: str) -> None:
        for call in calls:
            if self._claim(call):
                call.future.set_exception(BrokenProcessPool(why))

    def _nobody(self) -> str:
        workers = "scoring.workers" if self._kind == "grader" else "data.workers"
        return (
            f"there has been no {self._kind} for {NONE_S:g} s: cluster.{self._kind}s needs nodes that were "
            f"started with --resources='{{\"{RESOURCE}\": N}}', N at least {workers}"
        )
