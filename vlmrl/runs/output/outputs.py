"""What every output can do (say an event, follow something that may take long), in lines and in objects.

A command chooses its output once, at its edge (`terminal.choose`), and hands it to what works; nothing
else knows whether people or programs read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.table import Table

from vlmrl.errors import FULL_DISK, MissingExtra, UserError
from vlmrl.runs.output.events import ColdStartStep, Doing, Event, Failed, Interrupted, Step
from vlmrl.runs.output.words import SEPARATOR, wrap
from vlmrl.truths.json_form import to_json

PLAIN_LINES = 20
"""Approximate number of lines that a phase writes, if it is short."""
QUIET_S = 60.0
"""Seconds after which a step is said in any case: of a long run every minute has a line."""
AFTER_S = 3.0
"""Seconds after which something that takes long is said."""
EVERY_S = 10.0
"""Seconds between two lines about it."""


class Activity:
    """Something that may take long: `done(rows)` says how far it is, `seconds` how long it has taken.

    Rows that were done `before` it began, by a command that was stopped, do not count in its rate.
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

    Raises:
        UserError: at its end, where the disk of standard output was full.
    """

    _left_out: str = ""
    """Why a line had no room; empty: all are there."""

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
        if self._left_out and error is None:
            raise UserError(
                f"standard output: cannot be written: {self._left_out}; lines are missing there"
            )

    @contextlib.contextmanager
    def going_on(self, stream: IO[str]) -> Iterator[None]:
        """Inside, a log whose disk is full ends nothing: a line is left out, and the end says so."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            if stream is not sys.stderr:  # what is being done need not be known
                self._left_out = str(error.strerror)
            drop_unwritten(stream)

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


class Lines(Output):
    """Plain lines, for logs, pipes and terminals that cannot do more; broken at `columns` if given.

    Results go to standard output, what is being done to standard error. With `quiet` there is only what
    has to be known: warnings, evaluations and the end.
    """

    def __init__(
        self,
        columns: int | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._columns, self._quiet, self._clock = columns, quiet, clock
        self._lock = threading.Lock()
        self._said_at = clock()

    def say(self, event: Event) -> None:
        """Print an event; of steps only those that are due."""
        if self._quiet and not event.always:
            return
        if isinstance(event, Step | ColdStartStep):
            total = event.steps if isinstance(event, Step) else event.max_steps
            now = self._clock()
            if not is_due(event.step, total) and now - self._said_at < QUIET_S:
                return
            self._said_at = now
        stream = sys.stderr if event.aside else sys.stdout
        with self._lock:  # an activity speaks from a thread of its own
            for parts in event.lines():
                # A log is read by programs, too: one line stays one.
                whole = [SEPARATOR.join(parts)] if self._columns is None else None
                for line in whole or wrap(parts, self._columns or 0):
                    with self.going_on(stream):
                        print(line, file=stream, flush=True)

    def show(self, *tables: Table | str) -> None:
        """Print tables in the columns that there are, in a log as rich takes them."""
        if not self._quiet:
            print_tables(Console(file=sys.stdout, width=self._columns), *tables)

    def pass_on(self, text: str) -> None:
        """Write lines as they are."""
        with self._lock, self.going_on(sys.stdout):
            sys.stdout.write(text)
            sys.stdout.flush()

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Say how far the block is once it has taken a while, and then again and again."""
        with (
            super().doing(what, total, before) as activity,
            _beating(lambda: self.say(activity.state), AFTER_S, EVERY_S),
        ):
            yield activity


class JsonLines(Output):
    """One JSON object a line on standard output, for programs: `kind`, and the fields of that event.

    Whatever else would write there (a verifier that prints, a library) goes to standard error meanwhile,
    with `silent`, too, which writes no objects.
    """

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._out: IO[str] = sys.stdout

    def __enter__(self) -> JsonLines:
        self._out = self._stack.enter_context(_own_stdout())
        return self

    def close(self) -> None:
        """Give standard output back."""
        self._stack.close()

    def say(self, event: Event) -> None:
        """Write an event."""
        fields = {f.name: to_json(getattr(event, f.name)) for f in dataclasses.fields(event)}
        tree = {"kind": event.kind, **fields}
        self.pass_on(json.dumps(tree, ensure_ascii=False, allow_nan=False) + "\n")

    def pass_on(self, text: str) -> None:
        """Write lines, each a JSON object."""
        if self._silent:
            return
        with self._lock, self.going_on(self._out):  # an activity speaks from a thread of its own
            self._out.write(text)
            self._out.flush()

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Write that the block begins, how far it is every ten seconds, and that it has ended."""
        with super().doing(what, total, before) as activity:
            self.say(activity.state)
            try:
                with _beating(lambda: self.say(activity.state), EVERY_S, EVERY_S):
                    yield activity
            finally:
                activity.end()
                self.say(activity.state)


def drop_unwritten(stream: IO[str]) -> None:
    """Empty the buffer of a stream whose disk is full: Python, here and in forks, would try it again."""
    with contextlib.suppress(OSError, ValueError):  # a test's standard output has no descriptor
        number = stream.fileno()
        own, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        stream.flush()
        os.dup2(own, number)
        os.close(own)
        os.close(nowhere)


def print_tables(console: Console, *tables: Table | str) -> None:
    """Print tables, and paragraphs as they are: no text of models and data is markup."""
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, str), highlight=False, markup=False)


def is_due(step: int, total: int) -> bool:
    """Return whether a step is one of about `PLAIN_LINES` round ones."""
    round_numbers = (n * 10**e for e in range(9) for n in (1, 2, 5))
    every = next(n for n in round_numbers if n * PLAIN_LINES >= total)
    return step in (1, total) or step % every == 0


@contextlib.contextmanager
def _beating(tell: Callable[[], None], after_s: float, every_s: float) -> Iterator[None]:
    """Call `tell` from a thread while the block lasts, after `after_s` seconds and then every `every_s`."""
    ended = threading.Event()

    def beat() -> None:
        wait_s = after_s
        while not ended.wait(wait_s):
            tell()
            wait_s = every_s

    thread = threading.Thread(target=beat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _own_stdout() -> Iterator[IO[str]]:
    """Yield standard output, which meanwhile is standard error for all others, processes started here too."""
    before = sys.stdout
    before.flush()
    if not _is_descriptor(before, 1) or not _is_descriptor(sys.stderr, 2):
        with contextlib.redirect_stdout(sys.stderr):
            yield before
        return
    own = os.dup(1)
    os.dup2(2, 1)
    with open(own, "w", encoding="utf-8") as out:
        try:
            yield out
        finally:
            before.flush()
            os.dup2(own, 1)


def _is_descriptor(stream: IO[str], number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False
