"""Looking twice on several seeds, with a control: tool use, right answers, and where the crop lies.

    python performance/look_twice.py --seeds 0 1 2 --runs runs --out performance/results/look_twice.md

Runs that are already in the runs folder are read or gone on with, not run again. The control is the first
seed again, so it has the same cold start, with rewards shuffled over the batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vlmrl import config
from vlmrl.assemble import lifecycle
from vlmrl.runs import run_folder
from vlmrl.system.atomic_files import read_json

Curve = dict[int, dict[str, Any]]
COLUMNS = {
    "exact": "right, greedy",
    "sampled/exact": "right, sampled",
    "sampled/tool/used": "looks twice, sampled",
    "tool/crop_iou": "IoU of the crop, greedy",
    "sampled/tool/crop_iou": "sampled",
}
"""Metric -> heading."""


def curve(folder: Path, *overrides: str) -> Curve:
    """Return the evaluations of one run by step; runs it if it is not there."""
    settings = [f"run.dir={folder}", "run.threads=1", "resume=auto", *overrides]
    lifecycle.train(config.load("look_twice", settings))
    files = run_folder.steps_in(folder / "evals", ".json")
    return {step: read_json(path) for step, path in sorted(files.items())}


def rows(name: str, found: Curve) -> list[str]:
    """Return a line of the table for each evaluation of a run."""
    lines = []
    for step, evaluation in found.items():
        means, intervals = evaluation["metrics"], evaluation["intervals"]
        cells = []
        for metric in COLUMNS:
            if metric not in means:  # nothing was cropped
                cells.append("-")
                continue
            low, high = intervals[metric]
            cells.append(f"{means[metric]:.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {name} | {step} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [f"| run | step | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for seed in options.seeds:
        found = curve(options.runs / f"look_twice-{seed}", f"run.seed={seed}")
        lines += rows(f"seed {seed}", found)
    control = (
        f"run.seed={options.seeds[0]}",
        "control.shuffle_rewards=true",
        "evaluation.every=20",
    )
    folder = options.runs / "look_twice-shuffled"
    lines += rows("shuffled rewards", curve(folder, "run.steps=40", *control))
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
