"""Numbers and lines as people read them; a line breaks between parts and words, never inside a number."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from vlmrl.runs.metrics import PHASES, facts

SEPARATOR = "  "
"""Between two parts of a line."""
INDENT = "  "


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


def step_parts(metrics: Mapping[str, float]) -> list[str]:
    """Return a step in words, the most important first: reward, sources, signs of health, seconds."""
    table: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if match := re.fullmatch(r"source/(.+)/([^/]+)", key):
            table.setdefault(match[1], {})[match[2]] = value
    parts = [f"reward {number(metrics.get('reward/mean'))}"]
    for name, row in table.items():
        # The totals of an only source would repeat those of the step.
        keys = [k for k in row if len(table) > 1 or k not in ("reward", "uniform_share")]
        parts.append(" ".join([f"{name}:", *(f"{key} {number(row[key])}" for key in keys)]))
    parts += facts(metrics)
    spent = {phase: metrics.get(f"time/{phase}", 0.0) for phase in PHASES}
    if whole := sum(spent.values()):
        shares = [f"{name} {s / whole:.0%}" for name, s in spent.items() if s / whole >= 0.005]
        parts.append(f"{whole:.2f} s ({' '.join(shares)})")
    return parts


def wrap(parts: Sequence[str], columns: int) -> list[str]:
    """Return the parts as lines: broken between parts, a part too long for a line between its words.

    A word that is longer than a line stays whole: the terminal breaks it, and a copy of it is still right.
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(SEPARATOR) + len(part) <= columns:
            lines[-1] += SEPARATOR + part
            continue
        indent = INDENT if lines else ""
        lines += textwrap.wrap(
            part,
            max(columns, len(INDENT) + 1),
            initial_indent=indent,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return lines
