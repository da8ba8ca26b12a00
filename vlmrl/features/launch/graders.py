"""Verifiers on other machines: a pool whose calls run in actors of Ray, each with a deadline pool.

What a call is and what may go wrong with it stays as in `deadline_pool`: an actor kills what hangs on its
own machine, and the words of the fault are the same. Ray carries the calls, notices that an actor is lost,
and starts it again where there is room. Its calls do not wait for that: they are sent to the others, and
count once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
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
class _Seat:
    """A grader as this rank sees it: whether it answers, and the calls under way with it."""

    actor: Any
    up: bool = False
    load: int = 0


class RayPool:
    """A pool as `DeadlinePool` is one, whose calls run in graders. `close` it; the graders stay.

    A call is a coroutine, in a loop of the pool's own: it waits for a seat, and for another if the grader
    was lost.
    """

    def __init__(
        self,
        graders: Sequence[object],
        workers: int,
        prepare: Callable[[], None] | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Use these graders, whichever of them live; the rest as in `DeadlinePool`, for each of them."""
        self._pool = pickle.dumps((workers, prepare, max_memory))
        self._ahead = AHEAD * workers
        first = distributed.rank() % max(1, len(graders))  # so that not all ranks begin with one
        self._seats = [_Seat(grader) for grader in [*graders[first:], *graders[:first]]]
        self._room = asyncio.Condition()
        self._hopeless = False
        self._loop = asyncio.new_event_loop()
        self._doubt = self._loop.call_later(NONE_S, self._give_up)
        self._greetings = [self._loop.create_task(self._greet(seat)) for seat in self._seats]
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun.

        Raises:
            UserError: there has been no grader for long.
        """
        if self._hopeless:
            raise UserError(NOBODY)
        call = self._run(pickle.dumps((function, arguments)), deadline)
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Give up what runs; a thread that waits for a result gets CancelledError."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    async def _run(self, call: bytes, deadline: float) -> Any:
        """Return what a call returned; one whose grader was lost is sent again."""
        try:
            for _ in range(MAX_TRIES):
                async with self._seat() as seat:
                    try:
                        answer = seat.actor.judge.remote(self._pool, call, deadline)
                        error, packed = await asyncio.shield(answer.as_future())
                        break
                    except Exception as lost:  # the call's own errors are part of the answer
                        self._leave(seat, lost)
                        words = str(lost)
            else:
                raise BrokenProcessPool(f"its grader was lost {MAX_TRIES} times: {words}")
        except asyncio.CancelledError:
            if self._hopeless:
                raise BrokenProcessPool(NOBODY) from None
            raise
        if error is not None:
            raise error
        return pickle.loads(packed)

    @contextlib.asynccontextmanager
    async def _seat(self) -> AsyncIterator[_Seat]:
        """Inside, a call has a seat with the grader that has the fewest, as soon as one has room."""

        def has_room() -> bool:
            return any(seat.up and seat.load < self._ahead for seat in self._seats)

        async with self._room:
            await self._room.wait_for(has_room)
            seat = min((seat for seat in self._seats if seat.up), key=lambda each: each.load)
            seat.load += 1
        try:
            yield seat
        finally:
            seat.load -= 1
            async with self._room:
                self._room.notify()

    async def _greet(self, seat: _Seat) -> None:
        """Wait for a word of a grader, which says that it has a place, or has one again."""
        while not seat.up:
            try:
                host = await asyncio.shield(seat.actor.node.remote().as_future())
            except Exception:  # it was lost again
                await asyncio.sleep(RETRY_S)
                continue
            log.info("a grader is on %s", host)
            seat.up = True
            self._doubt.cancel()
            async with self._room:
                self._room.notify(self._ahead)

    def _leave(self, seat: _Seat, lost: BaseException) -> None:
        """Send nothing more to a grader that was lost until it answers again."""
        if not seat.up:
            return
        seat.up = False
        words = next(iter(str(lost).splitlines()), type(lost).__name__)
        log.warning("a grader was lost: its calls are asked for again elsewhere (%s)", words)
        if not any(each.up for each in self._seats):
            self._doubt = self._loop.call_later(NONE_S, self._give_up)
        self._greetings.append(self._loop.create_task(self._greet(seat)))

    def _give_up(self) -> None:
        """Fail all calls: there has been no grader for long."""
        self._hopeless = True
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
