"""The tables of the race: each trainer's figures beside ours, of one start and over several."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Result = dict[str, Any]
"""Of one trainer: `stamps` of its steps and `curve`, the held-out value by step; or `error`."""


def lines_of(results: Mapping[str, Result]) -> list[str]:
    """Return a line for each trainer; behind a figure how many times ours it is."""
    curves = [list(each["curve"].values()) for each in results.values() if "curve" in each]
    goal = min((max(values[1:]) for values in curves), default=0.0)
    begin = min((values[0] for values in curves), default=0.0)  # all begin alike
    took = {name: reached(each, goal) for name, each in results.items() if "curve" in each}
    lines = []
    for name, each in results.items():
        if name not in took:
            lines.append(f"{name} | fails: `{each['error']}` | | | | | |")
            continue
        figures = [f"{took[name][key]:.{digits}f}" for key, digits in DIGITS.items()]
        if name != "vlmrl" and "vlmrl" in took:
            ratios = [took[name][key] / (took["vlmrl"][key] or float("nan")) for key in DIGITS]
            figures = [f"{f} ({r:.2f}x)" for f, r in zip(figures, ratios, strict=True)]
        lines.append(
            f"{name} | {begin:.3f} -> {goal:.3f} | {took[name]['at']:.0f} | {' | '.join(figures)} |"
        )
    return lines


DIGITS = {"step": 2, "cpu": 0, "wall": 0, "peak": 0}
"""Figures of a trainer, and their decimal places."""


def reached(each: Result, goal: float) -> dict[str, float]:
    """Return the step at which a trainer reached a value, and what it took until then."""
    stamps, at = (
        each["stamps"],
        next(n for n, value in each["curve"].items() if n and value >= goal),
    )
    cpu, wall = (sum(stamp[key] for stamp in stamps[:at]) for key in ("cpu", "wall"))
    return {"at": at, "step": cpu_a_step(each), "cpu": cpu, "wall": wall, "peak": peak(each)}


def cpu_a_step(each: Result) -> float:
    return sum(stamp["cpu"] for stamp in each["stamps"]) / len(each["stamps"])


def peak(each: Result) -> float:
    return max(stamp["peak"] for stamp in each["stamps"])


def lines_over_seeds(by_seed: Sequence[Mapping[str, Result]]) -> list[str]:
    """Return a line for each trainer: means over the seeds that it ended, from the least to the most."""
    lines = []
    for name in dict.fromkeys(name for results in by_seed for name in results):
        pairs = [(each["vlmrl"], each[name]) for each in by_seed if "curve" in each.get(name, {})]
        pairs = [(ours, theirs) for ours, theirs in pairs if "curve" in ours]
        if pairs:
            values = [[*theirs["curve"].values()][-1] for _, theirs in pairs]
            ratios = (
                [figure(theirs) / figure(ours) for ours, theirs in pairs]
                for figure in (cpu_a_step, peak)
            )
            cells = [with_range(values, 3), *(with_range(each, 2) for each in ratios)]
            lines.append(f"{name} | {len(pairs)} | {' | '.join(cells)} |")
    return lines


def with_range(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.fmean(values):.{digits}f}"
    least, most = (f"{bound(values):.{digits}f}" for bound in (min, max))
    return mean if least == most else f"{mean} ({least} to {most})"


def curves_of(results: Mapping[str, Result]) -> list[str]:
    return [
        f"{name} | {', '.join(f'{value:.3f}' for value in each['curve'].values())} |"
        for name, each in results.items()
        if "curve" in each
    ]
