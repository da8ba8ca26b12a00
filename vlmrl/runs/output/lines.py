"""Plain lines for logs, pipes and terminals that cannot do more; `--quiet` leaves most of them out."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from vlmrl.runs.output.base import Activity, Output, beating
from vlmrl.runs.output.events import ColdStartStep, Event, Step
from vlmrl.runs.output.widths import SEPARATOR, wrap

__all__ = ["AFTER_S", "EVERY_S", "Lines", "QuietLines"]

PLAIN_LINES = 20
"""Approximate number of lines that a phase writes, if it is short."""
QUIET_S = 60.0
"""Seconds after which a step is said in any case: of a long run every minute has a line."""
AFTER_S = 3.0
"""Seconds after which something that takes long is said."""
EVERY_S = 10.0
"""Seconds between two lines about it."""


class Lines(Output):
    """Results on standard output, what is being done on standard error; broken at `columns` if given."""

    def __init__(
        self, columns: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._columns, self._clock = columns, clock
        self._lock = threading.Lock()
        self._said_at = clock()

    def say(self, event: Event) -> None:
        """Print an event; of steps only those that are due."""
        if isinstance(event, Step | ColdStartStep):
            total = event.steps if isinstance(event, Step) else event.max_steps
            now = self._clock()
            if not is_due(event.step, total) and now - self._said_at < QUIET_S:
                return
            self._said_at = now
        self._print(event)

    def show(self, *tables: Table | str) -> None:
        """Print tables in the columns that there are, in a log as rich takes them."""
        console = Console(file=sys.stdout, width=self._columns)
        for table in tables:
            whole = isinstance(table, str)
            console.print(table, soft_wrap=whole, highlight=False, markup=False)

    def pass_on(self, text: str) -> None:
        """Write lines as they are."""
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Say how far the block is once it has taken a while, and then again and again."""
        with (
            super().doing(what, total, before) as activity,
            beating(lambda: self._print(activity.state), AFTER_S, EVERY_S),
        ):
            yield activity

    def _print(self, event: Event) -> None:
        stream = sys.stderr if event.aside else sys.stdout
        with self._lock:  # an activity speaks from a thread of its own
            for parts in event.lines():
                if self._columns is None:  # a log is read by programs, too: one line stays one
                    print(SEPARATOR.join(parts), file=stream, flush=True)
                    continue
                for line in wrap(parts, self._columns):
                    print(line, file=stream, flush=True)


class QuietLines(Lines):
    """Only what has to be known: warnings, evaluations and the end."""

    def say(self, event: Event) -> None:
        """Print an event if it has to be known."""
        if event.always:
            super().say(event)

    doing = Output.doing
    show = Output.show


def is_due(step: int, total: int) -> bool:
    """Return whether a step is one of about `PLAIN_LINES` round ones."""
    round_numbers = (n * 10**e for e in range(9) for n in (1, 2, 5))
    every = next(n for n in round_numbers if n * PLAIN_LINES >= total)
    return step in (1, total) or step % every == 0
