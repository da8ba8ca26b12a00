"""What a terminal shows: lines that scroll by, and below them bars and the newest step, redrawn in place.

The panel fits the columns that there are now. What has no room is left out, the least important first:
of a bar its elapsed time, then the bar itself, then the time left; of a line its last parts; of the table of
sources its last columns. Numbers stay whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vlmrl.runs.console import (
    PHASES,
    Metrics,
    duration,
    facts,
    number,
    sft_parts,
    sources,
    sparkline,
    times,
)
from vlmrl.runs.output.base import Activity, Output
from vlmrl.runs.output.events import ColdStartStep, Event, Started, Step
from vlmrl.runs.output.widths import fit, shorten, wrap

__all__ = ["LiveOutput"]

BAR = 32
"""Widest bar, in columns."""
NARROWEST_BAR = 8
GAP = 2
"""Columns between two columns of a table."""


class LiveOutput(Output):
    """The panel of a terminal and the lines above it; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._panel = Panel()
        self._live = Live(
            console=console,
            refresh_per_second=4,
            get_renderable=lambda: self._panel,
        )

    def __enter__(self) -> LiveOutput:
        self._live.start()
        return self

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def say(self, event: Event) -> None:
        """Move a bar and refresh the numbers, or print the event's lines above the panel."""
        if isinstance(event, ColdStartStep):
            self._panel.cold_start(event)
        elif isinstance(event, Step):
            self._panel.step(event)
        else:
            style = "bold" if isinstance(event, Started) else ""
            for parts in event.lines():
                for line in wrap(parts, self._console.width):
                    # Text of models and data is printed as it is, never as markup.
                    self._console.print(Text(line, style), soft_wrap=True)

    def show(self, *tables: Table | str) -> None:
        """Print tables above the panel."""
        for table in tables:
            whole = isinstance(table, str)
            self._console.print(table, soft_wrap=whole, highlight=False, markup=False)

    def pass_on(self, text: str) -> None:
        """Print lines above the panel."""
        self._console.print(Text(text), soft_wrap=True, end="")

    @contextlib.contextmanager
    def doing(self, what: str, total: int | None = None, before: int = 0) -> Iterator[Activity]:
        """Show a bar, or without rows to count the seconds, while the block lasts."""
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
        self._bars: dict[str, Bar] = {}
        self._rewards: list[float] = []
        self._newest: ColdStartStep | Step | None = None

    def cold_start(self, event: ColdStartStep) -> None:
        """Take over a step of the cold start."""
        self._bar("cold start").move(event.step, event.max_steps, event.left_s)
        self._newest = event

    def step(self, event: Step) -> None:
        """Take over a GRPO step."""
        if imitation := self._bars.get("cold start"):
            # A cold start mostly ends by its metric, long before its cap: its bar is full then.
            imitation.end()
        self._bar("steps").move(event.step, event.steps, event.left_s)
        if "reward/mean" in event.metrics:
            self._rewards.append(event.metrics["reward/mean"])
        self._newest = event

    def _bar(self, name: str) -> Bar:
        return self._bars.setdefault(name, Bar(name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = options.max_width
        for bar in self._bars.values():
            yield bar.draw(columns)
        for activity in list(self.activities):
            yield draw_activity(activity, columns)
        if isinstance(self._newest, ColdStartStep):
            yield Text(fit(sft_parts(self._newest.metrics), columns))
        elif self._newest is not None:
            yield from draw_step(self._newest.metrics, self._rewards, columns)


class Bar:
    """How far a phase is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._done, self._total = 0, 0
        self._left_s: float | None = None
        self._begin = time.monotonic()
        self._taken: float | None = None

    def move(self, done: int, total: int, left_s: float | None) -> None:
        """Note how far it is."""
        self._done, self._total, self._left_s = done, total, left_s

    def end(self) -> None:
        """Note that it has come to its end, once."""
        if self._taken is None:
            self._total, self._left_s = self._done, None
            self._taken = time.monotonic() - self._begin

    def draw(self, columns: int) -> Text:
        """Return its line."""
        passed = time.monotonic() - self._begin if self._taken is None else self._taken
        left = [] if self._left_s is None else [f"{duration(self._left_s)} left"]
        after = [f"{self._done}/{self._total}", *left, duration(passed)]
        return draw_bar(f"{self._name:<10}", self._done, self._total, after, columns)


def draw_bar(name: str, done: int, total: int, after: list[str], columns: int) -> Text:
    """Return a name, a bar, and as much of what comes after it as has room."""
    for kept in range(len(after), min(2, len(after)) - 1, -1):
        room = columns - len(name) - 2 - len(fit(after[:kept], 10**6))
        if room >= NARROWEST_BAR:
            width = min(room, BAR)
            full = round(width * done / max(1, total))
            bar = Text(f"{name} ")
            bar.append("━" * full, "green").append("━" * (width - full), "dim")
            return bar.append(f" {fit(after[:kept], 10**6)}")
    return Text(fit([f"{name} {after[0]}", *after[1:2]], columns))


def draw_activity(activity: Activity, columns: int) -> Text:
    """Return the line of something that takes long."""
    state = activity.state
    if state.total is None:
        return Text(fit(state.parts(), columns), "cyan")
    after = [f"{state.done}/{state.total}", *state.parts()[:0:-1]]
    return draw_bar(activity.what, state.done, state.total, after, columns)


# ---------------------------------------------------------------------------------- the newest step


def draw_step(metrics: Metrics, rewards: list[float], columns: int) -> Iterator[Text]:
    """Yield the lines of a step: the curve of the reward so far, sources, health, seconds."""
    told = f"reward  {number(metrics.get('reward/mean'))}  "
    reward = Text.assemble(("reward  ", "dim"), (told[8:], "bold"))
    yield reward.append(sparkline(rewards, max(0, min(40, columns - len(told)))), "green")
    yield from draw_sources(sources(metrics), columns)
    if line := fit([f"{name} {value}" for name, value in facts(metrics)], columns):
        yield Text(line)
    yield draw_times(times(metrics), columns)


def draw_sources(table: dict[str, dict[str, float]], columns: int) -> Iterator[Text]:
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


def draw_times(spent: dict[str, float], columns: int) -> Text:
    """Return the seconds of a step, and by their length what of it went to which phase."""
    whole = sum(spent.values())
    if not whole:
        return Text()
    shares = [(name, f"{name} {s / whole:.0%}") for name, s in spent.items()]
    total = f"{whole:.2f} s"
    line = Text(total, "bold")
    room = columns - len(total) - 2 - sum(2 + len(words) for _, words in shares)
    if room >= NARROWEST_BAR:
        line.append("  ")
        for name, seconds in spent.items():
            line.append("━" * round(min(room, BAR) * seconds / whole), PHASES[name])
    for name, words in shares:
        if len(line) + 2 + len(words) > columns:
            break
        line.append(f"  {words}", PHASES[name])
    return line
