"""Calls in worker processes that are killed at a deadline (pebble underneath).

A call that hangs, crashes the interpreter, leaves it or takes too much memory costs its own result and
nothing else: the worker is killed and replaced, the other calls go on. Threads cannot do this: they
cannot be killed. A pool that breaks as a whole is built again, and its calls run a second time.

pebble reads the clock of the wall. One that is set forward during a call kills it early, which counts as a
kill (a verifier's call is then repeated); one that is set back spares none, since a late worker ends itself.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as Expired
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn, Protocol

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from vlmrl.errors import UserError
from vlmrl.system.processes import limit_memory

GRACE_S = 1.0
"""Seconds past its deadline after which a worker ends itself: its owner may be gone, or waits for it, since
one inside a C loop (a power tower) never runs its SIGTERM handler."""
PRELOADED = ["__main__", "vlmrl.scoring.scorer", "vlmrl.answers.parsing"]
"""Modules that the fork server imports once, so that a killed worker is replaced at once."""
MAX_CALLS = 10_000
"""Calls after which a worker is replaced: what leaks a little at every call never fills a machine."""
WATCH_S = 0.2
"""Seconds between two looks at whether the pool is whole."""
MAX_REBUILT = 8
"""Times in a row that a pool is built again without any call being done."""
TOO_MUCH_MEMORY = 88
"""Exit code of a worker whose call needed more memory than it may take."""
LEFT = 89
"""Exit code of a worker whose call left with 0: pebble would wait for the deadline of such a call."""
DEATHS = {
    TOO_MUCH_MEMORY: "it may not take that much memory (scoring.worker_memory_mb, memory_mb of tools)",
    LEFT: "exit code 0",
}
"""What is said of an exit code, if it is more than the code."""

HOPELESS = (
    "worker processes end before they have done a call; is there memory left? A script that is run "
    "must do its work below `if __name__ == '__main__':`, since workers import it"
)
log = logging.getLogger("vlmrl")

_leaving = threading.Event()
"""Set when this process ends: pebble then ends its pools, which are not to be built again."""
atexit.register(_leaving.set)  # after pebble's, and so called before it


class CallFailed(Exception):
    """A call gave no result; the message says why, in words for a fault counter."""


class TooLate(CallFailed):
    """A call ran past its deadline."""


class TimedPool(Protocol):
    """Processes for calls with a time limit, on this machine or on others."""

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start a call, see `DeadlinePool`."""

    def close(self) -> None:
        """Give up what runs; a thread that waits for a result gets CancelledError."""


MakePool = Callable[[int, Callable[[], None] | None, int | None], TimedPool]
"""What makes a pool, from the arguments of `DeadlinePool`."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call that is not done: what to call, the caller's future, and how often it was begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    deadline: float
    folder: str | None
    """Where the caller is: a relative path means the same to the worker."""
    future: Future[Any] = field(default_factory=Future)
    begun: int = 0


class DeadlinePool:
    """`workers` processes; every call has its own deadline. `close` it, or use it in a `with`.

    Processes come from a fork server (spawn where there is none), never from a fork of a trainer
    full of threads. They end with this process, however it ends. `rebuilt` counts how often the pool
    broke as a whole (its workers were killed from outside, say) and was built again.
    """

    def __init__(
        self,
        workers: int,
        prepare: Callable[[], None] | None = None,
        max_memory: int | None = None,
    ) -> None:
        """`prepare`, picklable, runs in each new worker before its first call, without a deadline.

        `max_memory` bytes may a worker take beyond what it has after `prepare`; a call that needs
        more ends its worker.
        """
        self.workers, self.prepare, self.max_memory = workers, prepare, max_memory
        self.rebuilt = self._fruitless = 0  # the latter: since a call was done
        self._pool: ProcessPool | None = None
        self._calls: set[_Call] = set()
        self._lock = threading.RLock()

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun.

        Raises:
            UserError: the workers end again and again before they have done anything.
        """
        folder = None
        with contextlib.suppress(OSError):  # it was removed
            folder = os.getcwd()
        call = _Call(function, arguments, deadline, folder)
        with self._lock:
            if self._fruitless > MAX_REBUILT:
                raise UserError(HOPELESS)
            self._calls.add(call)
            if self._pool is None:
                self._start()
            elif not _is_whole(self._pool):
                self._rebuild()
            if not call.begun and self._pool is not None:  # None: it was given up
                self._begin(call)
        return call.future

    def close(self) -> None:
        """Kill what runs and end the workers; who waits for a result is told that it was cancelled."""
        with self._lock:
            self._stop()
            calls, self._calls = self._calls, set()
        for call in calls:
            if call.future.cancel():  # this alone wakes nobody who waits for several
                call.future.set_running_or_notify_cancel()

    def __enter__(self) -> DeadlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise SystemExit(1)  # a worker imports a script without a guard; its owner says so
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if has_server else "spawn")
        context.set_forkserver_preload(PRELOADED)
        prepare = functools.partial(_prepare, self.prepare, self.max_memory)
        self._pool = ProcessPool(self.workers, MAX_CALLS, prepare, context=context)
        threading.Thread(target=self._watch, args=(self._pool,), daemon=True).start()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()

    def _begin(self, call: _Call) -> None:
        assert self._pool is not None
        call.begun += 1
        arguments = (call.function, call.deadline, call.folder, *call.arguments)
        try:
            inner = self._pool.schedule(_bounded, args=arguments, timeout=call.deadline)
        except (BrokenProcessPool, RuntimeError):  # no worker could be started
            return  # the watcher sees it
        inner.add_done_callback(functools.partial(self._settle, call))

    def _settle(self, call: _Call, inner: ProcessFuture[Any]) -> None:
        """Hand the outcome on; a call of a pool that broke, or was stopped, stays open."""
        if inner.cancelled() or isinstance(inner.exception(), BrokenProcessPool):
            return
        self._calls.discard(call)
        self._fruitless = 0
        if not call.future.set_running_or_notify_cancel():
            return
        error = inner.exception()
        if isinstance(error, Expired):  # pebble's own: what a call raises is none, see `_bounded`
            error = TooLate(f"killed: no result within {call.deadline:g} s")
        if error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(inner.result())

    def _watch(self, pool: ProcessPool) -> None:
        """Build the pool again as soon as it is broken; pebble would leave waiting calls waiting."""
        while self._pool is pool and not _leaving.wait(WATCH_S):
            with self._lock:
                if self._pool is pool and self._calls and not _is_whole(pool):
                    self._rebuild()

    def _rebuild(self) -> None:
        """Start a new pool and begin every open call again; one that was begun twice fails."""
        self._stop()
        self._fruitless += 1
        if self._fruitless > MAX_REBUILT:
            self._give_up(self._calls, HOPELESS)
            return
        self._start()
        self.rebuilt += 1
        again = [call for call in self._calls if call.begun == 1]
        lost = [call for call in self._calls if call.begun > 1]
        log.warning(
            "the worker processes of a pool died; they were started again: "
            f"{len(again)} calls repeated, {len(lost)} given up"
        )
        for call in again:
            self._begin(call)
        self._give_up(lost, "the worker processes died twice")

    def _give_up(self, calls: Iterable[_Call], why: str) -> None:
        for call in [*calls]:
            self._calls.discard(call)
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(BrokenProcessPool(why))


def was_killed(future: Future[Any]) -> bool:
    """Return whether a call is done because it ran past its deadline or ended its process."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return isinstance(error, TooLate | ProcessExpired)


def result(future: Future[Any]) -> Any:
    """Wait for a call and return what it returned.

    A KeyboardInterrupt that the call raised is its fault; one that ends the waiting is the user's.

    Raises:
        CallFailed: it raised, ran past its deadline (`TooLate`), or its process died.
    """
    wait([future])
    if future.cancelled():
        raise CallFailed("cancelled")
    if (error := future.exception()) is None:
        return future.result()
    if isinstance(error, TooLate):
        raise error
    if isinstance(error, ProcessExpired):
        code = error.exitcode or 0
        death = signal.Signals(-code).name if code < 0 else DEATHS.get(code, f"exit code {code}")
        raise CallFailed(f"its process died: {death}") from error
    if isinstance(error, BrokenProcessPool | CallFailed):
        raise CallFailed(str(error)) from error
    raise CallFailed(f"{type(error).__name__}: {error}") from error


def portable(value: object) -> Any:
    """Return `value`, for a worker to return, if the owner can read it.

    Raises:
        CallFailed: it cannot be pickled and read again.
    """
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception as error:
        raise CallFailed(f"what it returned cannot leave its process: {error}") from error


def _is_whole(pool: ProcessPool) -> bool:
    try:
        return bool(pool.active)
    except (BrokenProcessPool, RuntimeError):  # it could not be started
        return False


# ------------------------------------------------------------------------------------ in the worker


def _prepare(prepare: Callable[[], None] | None, max_memory: int | None) -> None:
    if prepare is not None:
        prepare()
    if max_memory is not None:
        limit_memory(max_memory)


def _bounded(
    function: Callable[..., Any], deadline: float, folder: str | None, *arguments: Any
) -> Any:
    # The owner kills a late worker, and is told so. This timer is a C thread that needs no GIL, so it
    # fires inside a C loop, too, and where the owner is gone (kill -9). An idle worker sees EOF.
    faulthandler.dump_traceback_later(deadline + GRACE_S, exit=True, file=_nowhere())
    os._exit = _leave
    try:
        if folder is not None:
            os.chdir(folder)
        return function(*arguments)
    except MemoryError:
        os._exit(TOO_MUCH_MEMORY)  # what leaked goes with this process
    except BaseException as error:
        ours = type(error).__module__.partition(".")[0] in ("builtins", "vlmrl")
        expired = isinstance(error, TimeoutError | Expired)  # the owner would take it for pebble's
        if (
            ours
            and not expired
            and all(isinstance(a, str | bytes | int | float | None) for a in error.args)
        ):
            raise
        # The owner may be unable to read another exception, and then the whole pool would break.
        raise CallFailed(f"{type(error).__name__}: {error}") from None
    finally:
        os._exit = _exit
        faulthandler.cancel_dump_traceback_later()


_exit = os._exit


def _leave(status: int) -> NoReturn:
    _exit(status or LEFT)


@functools.cache
def _nowhere() -> IO[str]:
    return open(os.devnull, "w")
