"""The numbers of a step in words. A text is in parts, the most important first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

__all__ = ["PHASES", "Metrics", "duration", "step_seconds"]

Metrics = Mapping[str, float]

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


def step_seconds(line: Mapping[str, Any]) -> float:
    """Return the wall seconds of the phases of a step, from its metrics; null counts as 0."""
    return sum(line.get(f"time/{phase}") or 0.0 for phase in PHASES)


def step_parts(metrics: Metrics) -> list[str]:
    """Return a step in words: the reward, the sources, signs of health, seconds."""
    parts = [f"reward {number(metrics.get('reward/mean'))}"]
    table = sources(metrics)
    for name, row in table.items():
        # The totals of an only source would repeat those of the step.
        keys = [k for k in row if len(table) > 1 or k not in ("reward", "uniform_share")]
        parts.append(" ".join([f"{name}:", *(f"{key} {number(row[key])}" for key in keys)]))
    parts += [f"{label} {text}" for label, text in facts(metrics)]
    if spent := times(metrics):
        whole = sum(spent.values())
        shares = " ".join(f"{k} {v / whole:.0%}" for k, v in spent.items() if v / whole >= 0.005)
        parts.append(f"{whole:.2f} s ({shares})")
    return parts


def sft_parts(metrics: Metrics) -> list[str]:
    """Return a step of the cold start in words."""
    return [f"{key} {number(value)}" for key, value in metrics.items()]


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


def facts(metrics: Metrics) -> list[tuple[str, str]]:
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


def number(value: float | None) -> str:
    """Return a number with three places, or three digits where it is small or large; `-` for none."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def describe_interval(interval: tuple[float | None, float | None], places: int = 3) -> str:
    """Return an interval in brackets."""
    low, high = ("-" if end is None else f"{end:.{places}f}" for end in interval)
    return f"[{low}, {high}]"


def duration(seconds: float) -> str:
    """Return seconds in the units in which one thinks of them: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
