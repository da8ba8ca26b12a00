"""pass@k of several models on one axis, from what `vlmrl eval --benchmark --samples K` stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.benchmarking.scoring import Figure
from vlmrl.benchmarking.stored import Stored
from vlmrl.commands.benchmarks.tables import make_table

__all__ = ["PassCurves", "draw_passes", "find_passes", "lacking_passes", "tabulate_passes"]

WIDTH, HEIGHT = 460, 230
"""Size of a drawing in units of its SVG."""
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 10, 24
"""Margins around its axes."""
DODGE = 4
"""Distance between the intervals of two models at the same k, SVG units."""
COLOURS = 8
"""Number of colours in style.css."""
MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the upright axis."""

Arms = Mapping[str, Sequence[Mapping[str, Stored]]]
"""By the name of an arm, the results of its seeds by benchmark."""


@dataclass(frozen=True, slots=True)
class PassCurves:
    """pass@k on one benchmark: by the name of a model (and its seed), the figure of each k.

    Each interval is that of the model alone, clusters drawn whole.
    """

    benchmark: str
    curves: Mapping[str, Mapping[int, Figure]]

    @property
    def ks(self) -> list[int]:
        """Return every k of any curve, rising."""
        return sorted({k for figures in self.curves.values() for k in figures})


def find_passes(arms: Arms, benchmarks: Sequence[str]) -> Iterator[PassCurves]:
    """Yield the curves of each benchmark on which every arm was sampled."""
    for benchmark in benchmarks:
        curves = _curves(arms, benchmark)
        if all(curves.values()):
            yield PassCurves(benchmark, {n: c for some in curves.values() for n, c in some.items()})


def lacking_passes(arms: Arms, benchmarks: Sequence[str]) -> Iterator[str]:
    """Yield a line on each benchmark on which only some of the arms were sampled."""
    for benchmark in benchmarks:
        curves = _curves(arms, benchmark)
        lacking = [name for name, some in curves.items() if not some]
        if lacking and any(curves.values()):
            yield (
                f"{benchmark}: no pass@k curves, because {', '.join(lacking)} has none: add "
                "`--samples` to its `vlmrl eval`"
            )


def tabulate_passes(passes: PassCurves) -> Any:
    """Return the curves as a table for the terminal, a line for each k."""
    table = make_table(f"{passes.benchmark}: pass@", *passes.curves)
    for k in passes.ks:
        told = (_told(figures.get(k)) for figures in passes.curves.values())
        table.add_row(str(k), *told)
    return table


def draw_passes(passes: PassCurves) -> dict[str, Any]:
    """Lay out the curves for the page: pass@k from 0 to 1 over k, each doubling of k as far as the next."""
    ks, count = passes.ks, len(passes.curves)
    reach = max(1.0, math.log2(ks[-1]))

    def across(k: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(k) / reach

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value

    curves = []
    for number, (name, figures) in enumerate(passes.curves.items()):
        shift = (number - (count - 1) / 2) * DODGE
        points = [
            [round(n, 1) for n in (across(k) + shift, up(f.value), up(f.low), up(f.high))]
            for k, f in sorted(figures.items())
        ]
        line = " ".join(f"{x},{y}" for x, y, _, _ in points)
        last = max(figures)
        told = f"pass@{last} {_told(figures[last])}"
        colour = number % COLOURS
        curves.append(
            {"name": name, "colour": colour, "points": points, "line": line, "last": told}
        )
    return {
        "title": f"{passes.benchmark}: pass@k",
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "across": [(round(across(k), 1), str(k)) for k in ks],
        "up": [(round(up(value), 1), f"{value:.0%}") for value in MARKS],
        "curves": curves,
    }


def _curves(arms: Arms, benchmark: str) -> dict[str, dict[str, Mapping[int, Figure]]]:
    """Return by arm the curves of its sampled seeds, each under a name of its own."""
    return {
        name: {
            name if len(seeds) == 1 else f"{name}, {number}": seed[benchmark].passes
            for number, seed in enumerate(seeds, 1)
            if seed[benchmark].passes
        }
        for name, seeds in arms.items()
    }


def _told(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
