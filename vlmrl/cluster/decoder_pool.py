"""Decoding on other machines: what cannot be decoded there is decoded here, and what is said of it counts.

A decoder that fails says nothing about a row: its machine may lack the file, the disk or a library. So
a row is only ever bad for what happened on the machine of its rank, as without decoders.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vlmrl.errors import UserError
from vlmrl.system.deadline_pool import MakePool, TimedPool

__all__ = ["DecoderPool", "maker_of"]

log = logging.getLogger("vlmrl")


class DecoderPool:
    """The pool of a loader whose calls run in decoders; it can be used again after its `close`.

    `repeated` counts the calls that were done again on this machine.
    """

    def __init__(self, make_remote: Callable[[], TimedPool], here: TimedPool) -> None:
        """Make the pool of the decoders when there is a call; `here` is one of this machine."""
        self.repeated = 0
        self._make, self._here = make_remote, here
        self._there: TimedPool | None = None
        self._told = False

    def submit(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Future[Any]:
        """Start a call, which returns what was decoded or an error, see `decode`."""
        future: Future[Any] = Future()
        again = functools.partial(self._here.submit, function, *arguments, deadline=deadline)
        try:
            self._there = self._there or self._make()
            there = self._there.submit(function, *arguments, deadline=deadline)
        except UserError as error:  # there has been no decoder for long
            self._repeat(error, again, future)
        else:
            there.add_done_callback(functools.partial(self._take, again, future))
        return future

    def close(self) -> None:
        """Give up what runs; a thread that waits for a result gets CancelledError."""
        there, self._there = self._there, None
        if there is not None:
            there.close()
        self._here.close()

    def _take(
        self, again: Callable[[], Future[Any]], future: Future[Any], there: Future[Any]
    ) -> None:
        """Take what a decoder made of a call, or do it again here."""
        found = None if there.cancelled() else there.exception() or there.result()
        if isinstance(found, BaseException):
            self._repeat(found, again, future)
        else:
            _hand_on(future, there)

    def _repeat(
        self, error: BaseException, again: Callable[[], Future[Any]], future: Future[Any]
    ) -> None:
        def compare(here: Future[Any]) -> None:
            done = not here.cancelled() and not here.exception()
            if done and not self._told and not isinstance(here.result(), UserError):
                self._told = True
                log.warning("decoded here, since a decoder could not: %s", error)
            _hand_on(future, here)

        self.repeated += 1
        try:
            again().add_done_callback(compare)
        except UserError as hopeless:
            future.set_exception(hopeless)


def _hand_on(future: Future[Any], done: Future[Any]) -> None:
    if done.cancelled():
        future.cancel()
        future.set_running_or_notify_cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def maker_of(make_remote: MakePool, make_local: MakePool) -> MakePool:
    """Return what makes the pool of a loader, from what makes that of the decoders and a local one."""

    def make(
        workers: int, prepare: Callable[[], None] | None, max_memory: int | None
    ) -> DecoderPool:
        remote = functools.partial(make_remote, workers, prepare, max_memory)
        return DecoderPool(remote, make_local(workers, prepare, max_memory))

    return make
