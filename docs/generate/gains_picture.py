"""Draw the README's first picture: what GRPO gains where demonstrations leave things out.

Beside it stand its cold start and its controls.

    python docs/generate/gains_picture.py docs/images/gains.png

The figures are those of `performance/results/stamps.yaml` and `drum_hits.yaml`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from figures import records
from matplotlib.axes import Axes

matplotlib.use("agg")
from matplotlib import pyplot

WAYS = {
    "shuffled": "GRPO with rewards shuffled",
    "imitation": "more imitation of the same",
    "before": "cold start: a third is left out",
    "grpo": "GRPO, paid by all",
    "exact": "imitation of all, exact",
}
COLOURS = {"grpo": "tab:orange", "exact": "tab:green"}
SEEDS = range(3)


def draw(file: Path) -> None:
    """Draw both results side by side."""
    figure, (seen, heard) = pyplot.subplots(
        1, 2, figsize=(9, 2.7), layout="constrained", sharey=True
    )
    draw_ways(seen, "stamps", "number-", "seen: scenes with the right number of things")
    draw_ways(heard, "drum_hits", "", "heard: drums, 1 - word error rate")
    seen.set_yticks(range(len(WAYS)), list(WAYS.values()))
    figure.savefig(file, dpi=150)


def draw_ways(axes: Axes, config: str, figure: str, title: str) -> None:
    """Draw a line for each way: a dot for each seed, their mean and its interval."""
    for height, way in enumerate(WAYS):
        colour = COLOURS.get(way, "tab:gray")
        mean = records()[f"{config}-all"].figures[f"{figure}{way}"]
        assert mean.interval is not None, f"{config}-all/{figure}{way} has no interval"
        axes.plot(mean.interval, [height, height], color=colour, lw=5, alpha=0.35)
        axes.plot(mean.expected, height, "|", color=colour, ms=16, mew=2.5)
        seeds = [records()[f"{config}-{s}"].figures[f"{figure}{way}"].expected for s in SEEDS]
        axes.plot(seeds, [height] * len(seeds), "o", color=colour, ms=5)
        axes.text(1.02, height, f"{mean.expected:.3f}", color=colour, va="center")
    axes.set(xlim=(0, 1))
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.25)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
