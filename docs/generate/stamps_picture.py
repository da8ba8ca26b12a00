"""Draw the README's first picture: the right number of things in new scenes, by what was trained.

    python docs/generate/stamps_picture.py docs/images/stamps_number.png

The figures are those of `performance/results/stamps.yaml`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from figures import records

matplotlib.use("agg")
from matplotlib import pyplot

WAYS = {
    "number-shuffled": "GRPO with rewards shuffled",
    "number-imitation": "more imitation of the same boxes",
    "number-before": "cold start: a third of the boxes left out",
    "number-grpo": "GRPO, paid by all boxes",
    "number-exact": "imitation of all boxes, exact",
}
SEEDS = range(3)


def draw(file: Path) -> None:
    """Draw a line for each way: a dot for each seed, their mean and its interval."""
    figure, axes = pyplot.subplots(figsize=(7.2, 2.6), layout="constrained")
    for height, way in enumerate(WAYS):
        colour = {"number-grpo": "tab:orange", "number-exact": "tab:green"}.get(way, "tab:gray")
        mean = records()["stamps-all"].figures[way]
        assert mean.interval is not None, f"stamps-all/{way} has no interval"
        axes.plot(mean.interval, [height, height], color=colour, lw=5, alpha=0.35)
        axes.plot(mean.expected, height, "|", color=colour, ms=16, mew=2.5)
        seeds = [records()[f"stamps-{seed}"].figures[way].expected for seed in SEEDS]
        axes.plot(seeds, [height] * len(seeds), "o", color=colour, ms=5)
        axes.text(1.01, height, f"{mean.expected:.3f}", color=colour, va="center")
    axes.set_yticks(range(len(WAYS)), list(WAYS.values()))
    axes.set(xlim=(0, 1), xlabel="share of 200 new scenes with the right number of things")
    axes.grid(axis="x", alpha=0.25)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
