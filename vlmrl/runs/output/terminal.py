"""What a terminal shows: lines that scroll by, and below them bars and the newest step, redrawn in place.

The panel fits the columns that there are now. What has no room is left out, the least important first:
of the bars their elapsed time, then the bars, then the time left; of a line its last parts; of the table of
sources its last columns. Numbers stay whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vlmrl.errors import UserError
from vlmrl.runs.metrics import facts
from vlmrl.runs.output.events import ColdStartStep, Doing, Event, Started, Step
from vlmrl.runs.output.outputs import Activity, JsonLines, Lines, Output, QuietLines, print_tables
from vlmrl.runs.output.words import (
    duration,
    fit,
    number,
    sft_parts,
    shorten,
    sources,
    time_parts,
    wrap,
)
from vlmrl.system import distributed

BAR = 32
"""Widest bar, in columns."""
NARROWEST_BAR = 6
GAP = 2
"""Columns between two columns of a table."""
BLOCKS = "▁▂▃▄▅▆▇█"


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
        columns = shutil.get_terminal_size().columns if is_terminal else None
        return (QuietLines if quiet else Lines)(columns)
    return LiveOutput(Console(file=sys.stdout))


class LiveOutput(Output):
    """The panel of a terminal and the lines above it; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._panel = Panel()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=lambda: self._panel)

    def __enter__(self) -> LiveOutput:
        self._live.start()
        return self

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def say(self, event: Event) -> None:
        """Move a bar and refresh the numbers, or print the event's lines above the panel."""
        if isinstance(event, ColdStartStep | Step):
            self._panel.step(event)
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
            self._panel.activities.append(activity)
            try:
                yield activity
            finally:
                self._panel.activities.remove(activity)


class Panel:
    """What is redrawn: the bars of the phases, what is being done, and the newest numbers."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self._phases: dict[str, Activity] = {}
        self._rewards: list[float] = []
        self._newest: ColdStartStep | Step | None = None

    def step(self, event: ColdStartStep | Step) -> None:
        """Take over a step of the cold start, or a GRPO step."""
        self._newest = event
        if isinstance(event, ColdStartStep):
            self._move("cold start", event.step, event.max_steps, event.left_s)
            return
        imitation = self._phases.get("cold start")
        if imitation is not None and not imitation.state.ended:
            # A cold start mostly ends by its metric, long before its cap: its bar is full then.
            imitation.total = imitation.state.done
            imitation.end()
        self._move("steps", event.step, event.steps, event.left_s)
        if "reward/mean" in event.metrics:
            self._rewards.append(event.metrics["reward/mean"])

    def _move(self, phase: str, step: int, total: int, left_s: float | None) -> None:
        activity = self._phases.setdefault(phase, Activity(phase, total, before=step))
        activity.done(step)
        activity.left_s = left_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = options.max_width
        shown = [*self._phases.values(), *self.activities]
        if shown:
            yield _bars([activity.state for activity in shown], columns)
        if isinstance(self._newest, ColdStartStep):
            yield Text(fit(sft_parts(self._newest.metrics), columns))
        elif self._newest is not None:
            yield from _step(self._newest.metrics, self._rewards, columns)


def _bars(states: Sequence[Doing], columns: int) -> Table:
    """Return names, bars, counts, times left and elapsed times as a table: the columns that have room."""
    rows = []
    for state in states:
        count = "" if state.total is None else f"{state.done}/{state.total}"
        left = "" if state.left_s is None or state.ended else f"{duration(state.left_s)} left"
        # Half of a line at most: a path must not push out what changes.
        name = shorten(state.what, max(10, columns // 2))
        rows.append((name, count, left, duration(state.seconds)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for has_bar, *kept in ((True, 1, 2, 3), (True, 1, 2), (False, 1, 2), (False, 1)):
        kept = [at for at in kept if widths[at]]
        room = columns - widths[0] - sum(GAP + widths[at] for at in kept)
        if room >= (GAP + NARROWEST_BAR if has_bar else 0):
            break
    table = Table.grid(padding=(0, GAP, 0, 0))
    for state, row in zip(states, rows, strict=True):
        moving = state.total is None
        bar = ProgressBar(state.total, state.done, min(BAR, room - GAP), moving)
        table.add_row(row[0], *([bar] if has_bar else []), *(row[at] for at in kept))
    for column in table.columns:
        column.no_wrap = True
    if len(kept) > 1:  # counts end in one column, before the times
        table.columns[1 + has_bar].justify = "right"
    return table


def _step(metrics: Mapping[str, float], rewards: list[float], columns: int) -> Iterator[Text]:
    """Yield the lines of a step: the curve of the reward so far, sources, health, seconds."""
    reward = Text.assemble(("reward  ", "dim"), (number(metrics.get("reward/mean")), "bold"), "  ")
    yield reward.append(sparkline(rewards, max(0, min(40, columns - len(reward)))), "green")
    yield from _sources(sources(metrics), columns)
    for parts in (facts(metrics), time_parts(metrics)):
        if line := fit(parts, columns):
            yield Text(line)


def _sources(table: Mapping[str, Mapping[str, float]], columns: int) -> Iterator[Text]:
    """Yield a table of the sources with as many columns as have room; long names are shortened."""
    keys = list(dict.fromkeys(key for row in table.values() for key in row))
    widths = {
        key: max(len(key), *(len(number(row.get(key))) for row in table.values())) for key in keys
    }
    names = max(map(len, ["source", *table]))
    while keys and min(names, 12) + sum(GAP + widths[key] for key in keys) > columns:
        keys.pop()
    names = min(names, columns - sum(GAP + widths[key] for key in keys))
    cells = "".join(f"{'':{GAP}}{key:>{widths[key]}}" for key in keys)
    if keys:
        yield Text(f"{'source':<{names}}{cells}", "dim")
    for name, row in table.items() if keys else ():
        cells = "".join(f"{'':{GAP}}{number(row.get(key)):>{widths[key]}}" for key in keys)
        yield Text(f"{shorten(name, names):<{names}}{cells}")


def sparkline(values: list[float], width: int) -> str:
    """Return values as at most `width` blocks, each the mean of its part, scaled from min to max."""
    if not values:
        return ""
    count = min(width, len(values))
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)
