"""What every output can do: say an event, and follow something that may take long.

A command chooses its output once, at its edge (`choose`), and hands it to what works; nothing else knows
whether people or programs read.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from vlmrl.errors import MissingExtra, UserError
from vlmrl.runs.output.events import Doing, Event, Failed, Interrupted

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Activity", "Output"]


class Activity:
    """Something that may take long: `done(rows)` says how far it is, `seconds` how long it has taken.

    `before` rows were done when it began, by a command that was stopped: they say nothing of its rate.
    """

    def __init__(self, what: str, total: int | None = None, before: int = 0) -> None:
        self.what, self.total = what, total
        self._begin = time.monotonic()
        self._before = self._done = before
        self._taken: float | None = None

    def done(self, rows: int) -> None:
        """Note how many rows are done in all."""
        self._done = rows

    def end(self) -> None:
        """Stop the clock."""
        self._taken = self.seconds

    @property
    def seconds(self) -> float:
        """Return the seconds since it began, until it ended."""
        return time.monotonic() - self._begin if self._taken is None else self._taken

    @property
    def state(self) -> Doing:
        """Return how far it is now."""
        done = self._done if self.total is None else min(self._done, self.total)
        seconds, fresh = self.seconds, done - self._before
        rate = fresh / max(seconds, 1e-9) if fresh > 0 else None
        left_s = None if rate is None or self.total is None else (self.total - done) / rate
        ended = self._taken is not None
        return Doing(self.what, done, self.total, seconds, ended, rate, left_s)


class Output:
    """An output that says nothing, for ranks that are not the main one; the others add to it.

    Use it as a context manager: an error that leaves it is an event, too.
    """

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.say(Interrupted(resume=None, kept=None))
        elif isinstance(error, Exception):
            self.say(Failed(str(error), isinstance(error, UserError | MissingExtra)))
        self.close()

    def say(self, event: Event) -> None:
        """Say an event."""

    def show(self, *tables: Table | str) -> None:
        """Show people what events have told programs, as tables and paragraphs."""

    def pass_on(self, text: str) -> None:
        """Write whole lines on standard output that a process of this command has written there."""

    def close(self) -> None:
        """Give back what the output has taken."""

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Follow a block that may take long, with `total` rows if they can be counted, `before` done."""
        activity = Activity(what, total, before)
        try:
            yield activity
        finally:
            activity.end()


@contextlib.contextmanager
def beating(tell: Callable[[], None], after_s: float, every_s: float) -> Iterator[None]:
    """Call `tell` from a thread while the block lasts, after `after_s` seconds and then every `every_s`."""
    ended = threading.Event()

    def beat() -> None:
        wait = after_s
        while not ended.wait(wait):
            tell()
            wait = every_s

    thread = threading.Thread(target=beat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
