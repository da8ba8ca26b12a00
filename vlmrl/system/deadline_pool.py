"""Calls in worker processes that are killed at a deadline (pebble underneath).

A call that hangs, crashes the interpreter or leaves it costs its own result and nothing else: the
worker is killed and replaced, the other calls go on. Threads cannot do this: they cannot be killed.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import TimeoutError as Expired
from concurrent.futures.process import BrokenProcessPool
from typing import IO, Any

from pebble import CONSTS, ProcessExpired, ProcessFuture, ProcessPool

__all__ = ["CallFailed", "DeadlinePool", "result", "was_killed"]

# A worker inside a C loop (a power tower) never runs its SIGTERM handler: do not wait 3 s for it.
CONSTS.term_timeout = 0.2
ORPHAN_GRACE = 2.0
"""Seconds past its deadline after which a worker without an owner ends itself."""
PRELOADED = ["__main__", "vlmrl.scoring.scorer", "vlmrl.answers.parsing"]
"""Modules that the fork server imports once, so that a killed worker is replaced at once."""


class CallFailed(Exception):
    """A call gave no result; the message says why, in words for a fault counter."""


class DeadlinePool:
    """`workers` processes; every call has its own deadline. `close` it, or use it in a `with`.

    Processes come from a fork server (spawn where there is none), never from a fork of a trainer
    full of threads. They end with this process, however it ends.
    """

    def __init__(self, workers: int, prepare: Callable[[], None] | None = None) -> None:
        """`prepare`, picklable, runs in each new worker before its first call, without a deadline."""
        self.workers = workers
        self.prepare = prepare
        self._pool: ProcessPool | None = None
        self._futures: weakref.WeakSet[ProcessFuture[Any]] = weakref.WeakSet()
        self._lock = threading.RLock()

    def submit(
        self, function: Callable[..., Any], *arguments: Any, deadline: float
    ) -> ProcessFuture[Any]:
        """Start `function(*arguments)`, picklable; it may run `deadline` seconds once begun."""
        with self._lock:
            if self._pool is None or not self._pool.active:
                self.close()
                self._pool = _start(self.workers, self.prepare)
            future: ProcessFuture[Any] = self._pool.schedule(
                _bounded, args=(function, deadline, *arguments), timeout=deadline
            )
            self._futures.add(future)
            return future

    def close(self) -> None:
        """Kill what runs and end the workers; a thread that waits for a result gets CancelledError."""
        with self._lock:
            if self._pool is None:
                return
            self._pool.stop()
            self._pool.join()
            self._pool = None
            for future in self._futures:
                future.cancel()
            self._futures.clear()

    def __enter__(self) -> DeadlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def was_killed(future: ProcessFuture[Any]) -> bool:
    """Return whether a call is done because it ran past its deadline or ended its process."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return _is_expiry(error) or isinstance(error, ProcessExpired)


def result(future: ProcessFuture[Any]) -> Any:
    """Wait for a call and return what it returned.

    Raises:
        CallFailed: it raised, ran past its deadline, or its process died.
    """
    try:
        return future.result()
    except Expired as error:
        if not _is_expiry(error):  # raised by the call itself, of a request of its own
            raise CallFailed(f"{type(error).__name__}: {error}") from error
        raise CallFailed(f"killed: no result within {error.args[-1]:g} s") from error
    except ProcessExpired as error:
        raise CallFailed(f"its process died: {_death(error.exitcode)}") from error
    except BrokenProcessPool as error:
        raise CallFailed(f"the pool broke: {error}") from error
    except (Exception, SystemExit) as error:  # raised by the call itself, in the worker
        raise CallFailed(f"{type(error).__name__}: {error}") from error


def _is_expiry(error: BaseException | None) -> bool:
    """Return whether this is the pool's own time-out: pebble says so in words, with the limit."""
    return isinstance(error, Expired) and error.args[:1] == ("Task timeout",)


def _start(workers: int, prepare: Callable[[], None] | None) -> ProcessPool:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return ProcessPool(workers, 0, prepare, context=multiprocessing.get_context("spawn"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return ProcessPool(workers, 0, prepare, context=context)


def _bounded(function: Callable[..., Any], deadline: float, *arguments: Any) -> Any:
    # The owner kills a late worker. Should the owner be gone (kill -9), the worker ends itself:
    # this timer is a C thread that needs no GIL, so it fires inside a C loop too. An idle worker
    # sees EOF.
    faulthandler.dump_traceback_later(deadline + ORPHAN_GRACE, exit=True, file=_nowhere())
    try:
        return function(*arguments)
    finally:
        faulthandler.cancel_dump_traceback_later()


@functools.cache
def _nowhere() -> IO[str]:
    return open(os.devnull, "w")


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
