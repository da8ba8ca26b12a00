"""Calls of verifiers outside this thread: in processes that can be killed, or in threads that wait.

A worker builds its verifiers and loads what they need before its first call, so that a time limit
counts the call alone: neither imports nor the time in the queue.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from typing import Any

from pebble import ThreadPool

from vlmrl.answers import templates
from vlmrl.schema import KILLED, Completion, Sample, Template, Verdict
from vlmrl.scoring.reward_components import Component, Spec, build, judge_tag
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier
from vlmrl.system.deadline_pool import (
    CallFailed,
    DeadlinePool,
    MakePool,
    portable,
    result,
    was_killed,
)

THREADS = 16
"""Calls that wait at the same time, where no verifier asks for more."""
MAX_THREADS = 256
"""The most of them."""
THREAD_LIMIT_S = 600.0
"""Seconds in which no call in a thread returns, after which one is given up; a thread cannot be killed,
so it is lost."""
LOADING_S = 30.0
"""Seconds more for a call whose verifier the workers did not load before, because a row named it."""
NOTICE_S = 10.0
"""Seconds of waiting for one verifier after which the log says which one it is."""
INNOCENT = "1"
"""An answer that no verifier can hang on, unless it hangs on everything."""

log = logging.getLogger("vlmrl")


class Calls:
    """Starts calls of components and waits for their results. Close it to end its workers.

    Those with a time limit run in the pool that `make_pool` makes.
    """

    def __init__(
        self,
        workers: int,
        specs: Iterable[Spec],
        memory_mb: int,
        make_pool: MakePool = DeadlinePool,
        threads: int = THREADS,
    ) -> None:
        specs = tuple(specs)
        prepare = functools.partial(load_verifiers, specs)
        self._pool = make_pool(workers, prepare, memory_mb * 2**20)
        self._threads = ThreadPool(min(max(threads, THREADS), MAX_THREADS))
        self._returned = 0.0
        self._noticed: set[str] = set()
        self._loaded = frozenset(specs)
        self._begun: dict[tuple[Spec, str | None, int], tuple[Sample, Any]] = {}

    def begin(self, c: Component, completion: Completion, sample: Sample, *shown: Any) -> None:
        """Start a call early; `start` returns its future later, as long as the completion lives."""
        key = (c.spec, c.reward.tag, id(completion))
        self._begun[key] = sample, self.start(c, completion, sample, *shown)
        weakref.finalize(completion, self._begun.pop, key, None).atexit = False

    def start(self, c: Component, *arguments: Any) -> Any:
        """Start a call in the pool, or in a thread if the verifier only waits, unless it has begun."""
        key, call = (c.spec, c.reward.tag, id(arguments[0])), (c.spec, c.reward.tag, arguments)
        known, future = self._begun.pop(key, (None, None))
        if known is not None and known is arguments[1]:
            return future
        if c.deadline is None:
            waiting = self._threads.schedule(_call, args=call)
            waiting.add_done_callback(self._note_return)
            return waiting
        # A verifier that a row names is loaded by its first call in a worker.
        loading = 0.0 if c.spec in self._loaded else LOADING_S
        return self._pool.submit(_call, *call, deadline=c.deadline + loading)

    def result(self, c: Component, future: Any) -> Any:
        """Return a call's result, CallFailed if it failed; name the verifier if it takes long."""
        since = time.monotonic()
        if wait([future], NOTICE_S).not_done and c.label not in self._noticed:
            self._noticed.add(c.label)
            limit = THREAD_LIMIT_S if c.deadline is None else c.deadline
            log.warning(
                "verifier %r is slow: %g s of waiting for one call so far (time limit of a call "
                "that runs: %g s)", c.label, NOTICE_S, limit,
            )  # fmt: skip
        if c.deadline is None:
            # A call may be far back in the queue: what counts is whether any call returns.
            while (left := max(since, self._returned) + THREAD_LIMIT_S - time.monotonic()) > 0:
                if wait([future], left).done:
                    return result(future)
            raise CallFailed(f"given up: no call returned within {THREAD_LIMIT_S:g} s")
        return result(future)

    def _note_return(self, _: object) -> None:
        self._returned = time.monotonic()

    def is_kill(
        self, c: Component, completion: Completion, sample: Sample, *shown: Any
    ) -> Verdict | None:
        """Judge again a completion whose call was killed: by chance, by the verifier, or by itself.

        Returns the verdict of the second call if there is one; the lowest score if the completion
        ends that call too while the verifier answers on an innocent one; None otherwise.
        """
        second = self.start(c, completion, sample, *shown)
        innocent = templates.completion(
            INNOCENT, Template((), c.reward.tag or "text"), completion.frame
        )
        control = self.start(c, innocent, sample, *shown)
        wait([second, control])
        if not was_killed(second):
            return None if second.exception() else second.result()
        if was_killed(control):
            return None
        return Verdict(c.verifier.low, {KILLED: 1.0}, note="this completion ends its verifier")

    def close(self) -> None:
        """End the worker processes; a thread that still waits ends with its call."""
        self._pool.close()
        self._threads.stop()


def load_verifiers(specs: Sequence[Spec]) -> None:
    """Build verifiers in a new worker; what fails here fails again in its call, and is counted."""
    for spec in specs:
        try:
            build(spec).warm_up()
        except BaseException as error:  # no Ctrl-C reaches a worker: it is the verifier's own
            log.debug("verifier %s cannot be loaded: %s", spec[0], error)


def _call(spec: Spec, tag: str | None, arguments: Sequence[Any]) -> Any:
    """Call the verifier that a spec stands for, on a tag's content; a process builds it once."""
    verifier = build(spec)
    if isinstance(verifier, GroupVerifier | BatchVerifier):
        return portable(verifier.judge(*arguments))
    return portable(judge_tag(verifier, tag, *arguments))
