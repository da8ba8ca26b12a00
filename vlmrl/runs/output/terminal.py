"""What a terminal shows: lines that scroll by, and below them bars and the newest step, redrawn in place.

All of it fits the columns that there are now, and breaks between parts: numbers stay whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vlmrl.errors import UserError
from vlmrl.runs.output.events import ColdStartStep, Event, Line, Started, Step
from vlmrl.runs.output.outputs import Activity, JsonLines, Lines, Output, print_tables
from vlmrl.runs.output.words import wrap
from vlmrl.system import distributed

BAR = 60
"""Widest bar, in columns."""


def choose(quiet: bool = False, as_json: bool = False) -> Output:
    """Return what fits the options of a command and its standard output.

    Raises:
        UserError: both options are given.
    """
    if quiet and as_json:
        raise UserError("expected one of --quiet and --json, got both")
    is_silent = distributed.launched_rank() > 0  # the main rank speaks for all
    if as_json:
        return JsonLines(is_silent)
    if is_silent:
        return Output()
    # Not what rich says: FORCE_COLOR would make a log a terminal.
    is_terminal = sys.stdout.isatty()
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")  # it cannot move its cursor
    if quiet or not is_terminal or is_dumb:
        return Lines(shutil.get_terminal_size().columns if is_terminal else None, quiet)
    return LiveOutput(Console(file=sys.stdout))


class LiveOutput(Output):
    """The panel of a terminal and the lines above it; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._activities: list[Activity] = []
        self._newest: ColdStartStep | Step | None = None
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self.panel)

    def __enter__(self) -> LiveOutput:
        self._live.start()
        return self

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def panel(self) -> Table:
        """Return what is redrawn: the newest step and what is being done, each below its bar."""
        columns = self._console.width
        bars: list[tuple[int | None, int, Line]] = []
        if (newest := self._newest) is not None:
            steps = newest.steps if isinstance(newest, Step) else newest.max_steps
            bars.append((steps, newest.step, newest.lines()[0]))
        for state in [activity.state for activity in self._activities]:
            bars.append((state.total, state.done, state.lines()[0]))
        panel = Table.grid()
        for total, done, parts in bars:
            panel.add_row(ProgressBar(total, done, min(BAR, columns), pulse=total is None))
            panel.add_row(Text("\n".join(wrap(parts, columns))))
        return panel

    def say(self, event: Event) -> None:
        """Move the bar of the steps, or print the event's lines above the panel."""
        if isinstance(event, ColdStartStep | Step):
            self._newest = event
            return
        style = "bold" if isinstance(event, Started) else ""
        for parts in event.lines():
            for line in wrap(parts, self._console.width):
                # Text of models and data is printed as it is, never as markup.
                self._console.print(Text(line, style), soft_wrap=True)

    def show(self, *tables: Table | str) -> None:
        """Print tables above the panel."""
        print_tables(self._console, *tables)

    def pass_on(self, text: str) -> None:
        """Print lines above the panel."""
        self._console.print(Text(text), soft_wrap=True, end="")

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Show a bar, or without rows to count one that moves, while the block lasts."""
        with super().doing(what, total, before) as activity:
            self._activities.append(activity)
            try:
                yield activity
            finally:
                self._activities.remove(activity)
