"""The console view of a run: a live panel on a terminal, plain lines everywhere else.

Text of models and data is printed as it is: never as rich markup.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = ["PHASES"]

Metrics = Mapping[str, float]

PLAIN_LINES = 20
"""Approximate number of lines that a phase writes without a terminal."""
# The phases of a step, each with its colour.
PHASES = {
    "data": "blue",
    "generate": "cyan",
    "reward": "yellow",
    "logprob": "magenta",
    "update": "green",
    "sync": "red",
}
BLOCKS = "▁▂▃▄▅▆▇█"


def view(title: str, total_steps: int, step: int) -> LiveView | PlainView:
    """Return the view that fits standard output; `step` steps are already done."""
    console = Console(file=sys.stdout)
    # Not console.is_terminal: FORCE_COLOR sets it, and a log must not get a live panel.
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LiveView(console, title, total_steps, step)
    return PlainView(console, total_steps)


class PlainView:
    """One line every few steps, for logs."""

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console = console
        self._total = total_steps

    def start(self) -> None:
        """Do nothing: there is nothing to open."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def message(self, text: str) -> None:
        """Print one line."""
        # Too wide a line must not be folded: a log is read by programs too.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def sft(self, step: int, total: int, metrics: Metrics) -> None:
        """Print a line every few steps of the cold start."""
        if _is_due(step, total):
            self.message(f"cold start {step:>{len(str(total))}}/{total}  {sft_line(metrics)}")

    def step(self, step: int, metrics: Metrics) -> None:
        """Print a line every few steps."""
        if _is_due(step, self._total):
            self.message(
                f"step {step:>{len(str(self._total))}}/{self._total}  {step_line(metrics)}"
            )

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """Print a line with the main numbers and their intervals."""
        self.message(f"evaluation at step {step}  {evaluation_line(result)}")


class LiveView:
    """Progress bars above a table of the newest numbers; messages scroll by above them."""

    def __init__(self, console: Console, title: str, total_steps: int, step: int) -> None:
        self._console = console
        self._title = title
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        # A bar shows up, and its clock starts, with the phase's first step.
        self._sft = self._progress.add_task("cold start", start=False, total=None, visible=False)
        self._steps = self._progress.add_task(
            "steps", start=False, total=total_steps, completed=step, visible=False
        )
        self._rewards: list[float] = []
        self._panel: Group | Text = Text()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def start(self) -> None:
        """Take over the bottom of the terminal."""
        self._console.print(self._title, markup=False, highlight=False, style="bold")
        self._live.start()

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def message(self, text: str) -> None:
        """Print a line above the panel."""
        self._console.print(text, markup=False, highlight=False)

    def sft(self, step: int, total: int, metrics: Metrics) -> None:
        """Move the cold start's bar."""
        self._progress.start_task(self._sft)
        self._progress.update(self._sft, total=total, completed=step, visible=True)
        self._panel = Text(sft_line(metrics))

    def step(self, step: int, metrics: Metrics) -> None:
        """Move the bar and refresh the table."""
        self._progress.stop_task(self._sft)
        # A cold start mostly ends by its metric, long before its cap: its bar is full then.
        self._progress.update(self._sft, total=self._progress.tasks[self._sft].completed)
        self._progress.start_task(self._steps)
        self._progress.update(self._steps, completed=step, visible=True)
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])
        self._panel = step_panel(metrics, self._rewards)

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """Print the evaluation above the panel: it is worth keeping."""
        self.message(f"evaluation at step {step}  {evaluation_line(result)}")

    def _render(self) -> Group:
        return Group(self._progress, self._panel)


# ---------------------------------------------------------------------------------- the texts


def sources(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return the `source/<name>/<component>` metrics as a table: source -> component -> value."""
    table: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if found := re.fullmatch(r"source/(.+)/([^/]+)", key):
            table.setdefault(found[1], {})[found[2]] = value
    return table


def times(metrics: Metrics) -> dict[str, float]:
    """Return the seconds per phase of the step, in the order of the phases."""
    found = {phase: metrics.get(f"time/{phase}", 0.0) for phase in PHASES}
    return {phase: seconds for phase, seconds in found.items() if seconds > 0}


def step_line(metrics: Metrics) -> str:
    """Return a step as one line."""
    parts = [f"reward {_number(metrics.get('reward/mean'))}"]
    table = sources(metrics)
    for name, row in table.items():
        # The totals of an only source would repeat those of the step.
        keys = [k for k in row if len(table) > 1 or k not in ("reward", "uniform_share")]
        parts.append(" ".join([f"{name}:", *(f"{key} {_number(row[key])}" for key in keys)]))
    parts += [f"{label} {text}" for label, text in _facts(metrics)]
    if spent := times(metrics):
        whole = sum(spent.values())
        shares = " ".join(f"{k} {v / whole:.0%}" for k, v in spent.items() if v / whole >= 0.005)
        parts.append(f"{whole:.2f} s ({shares})")
    return "  ".join(parts)


def sft_line(metrics: Metrics) -> str:
    """Return a step of the cold start as one line."""
    return "  ".join(f"{key} {_number(value)}" for key, value in metrics.items())


def evaluation_line(result: Mapping[str, Any]) -> str:
    """Return the metrics of an evaluation over all sources, each with its 95 % interval."""
    intervals = result.get("intervals", {})
    parts = []
    for key, value in result["metrics"].items():
        if "/" in key:
            continue
        low, high = intervals.get(key, (None, None))
        parts.append(f"{key} {_number(value)} [{_number(low)}, {_number(high)}]")
    return "  ".join(parts)


def step_panel(metrics: Metrics, rewards: list[float]) -> Group:
    """Return the newest step as a table, with the curve of the reward so far."""
    reward = Text.assemble(
        ("reward  ", "dim"),
        (_number(metrics.get("reward/mean")), "bold"),
        "  ",
        (sparkline(rewards, 40), "green"),
    )
    facts = Text("   ").join(Text.assemble((f"{k} ", "dim"), v) for k, v in _facts(metrics))
    return Group(reward, _source_table(metrics), facts, _time_bar(times(metrics)))


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


def _source_table(metrics: Metrics) -> Table:
    table = sources(metrics)
    columns = list(dict.fromkeys(key for row in table.values() for key in row))
    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column("source")
    for column in columns:
        grid.add_column(Text(column), justify="right")
    for name, row in table.items():
        grid.add_row(Text(name), *(_number(row.get(column)) for column in columns))
    return grid


def _time_bar(spent: dict[str, float], width: int = 32) -> Text:
    whole = sum(spent.values())
    if not whole:
        return Text()
    bar, words = Text(), Text()
    for name, value in spent.items():
        bar.append("━" * round(width * value / whole), PHASES[name])
        words.append(f"  {name} {value / whole:.0%}", PHASES[name])
    return Text.assemble((f"{whole:.2f} s  ", "bold"), bar, words)


def _facts(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the few other numbers that show at a glance whether a run is healthy."""
    found = []
    for label, key, style in (
        ("uniform groups", "rollout/uniform_share", "{:.0%}"),
        ("length", "rollout/length", "{:.1f}"),
        ("cut", "rollout/truncated", "{:.0%}"),
        ("entropy", "rollout/entropy", "{:.3f}"),
        ("kl", "loss/kl", "{:.4f}"),
        ("grad", "update/grad_norm", "{:.2f}"),
    ):
        if key in metrics:
            found.append((label, style.format(metrics[key])))
    return found


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def _is_due(step: int, total: int) -> bool:
    round_numbers = (n * 10**e for e in range(9) for n in (1, 2, 5))
    every = next(n for n in round_numbers if n * PLAIN_LINES >= total)
    return step in (1, total) or step % every == 0
