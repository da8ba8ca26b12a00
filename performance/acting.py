"""A config with tools or a world on several seeds, with a control: does it learn to act and to be right?

    python performance/acting.py look_twice --seeds 0 1 2 --runs runs --out performance/results/look_twice.md
    python performance/acting.py gui_world --out performance/results/gui_world.md

Runs that are already in the runs folder are read or gone on with, not run again. The control is the first
seed again, so it has the same cold start, with rewards shuffled over the batch. CPU seconds are those of all
phases of a run, cold start and evaluations included.
"""

from __future__ import annotations

from pathlib import Path

from learning import Curve, evaluations, over_seeds, tell
from tables import head

from vlmrl import config
from vlmrl.assemble import lifecycle
from vlmrl.system.files import read_json

COLUMNS = {
    "look_twice": {
        "exact": "right, greedy",
        "sampled/exact": "right, sampled",
        "sampled/tool/used": "looks twice, sampled",
        "tool/crop_iou": "IoU of the crop, greedy",
        "sampled/tool/crop_iou": "sampled",
    },
    "gui_world": {
        "world/solved": "success, greedy",
        "sampled/world/solved": "success, sampled",
        "sampled/world/done": "world ended, sampled",
        "sampled/world/progress": "rows right, sampled",
        "sampled/rollout/turns": "turns, sampled",
    },
}
"""Config -> metric -> heading."""


def curve(name: str, folder: Path, *overrides: str) -> tuple[Curve, float]:
    """Return the evaluations of one run by step, and its CPU seconds; runs it if it is not there."""
    settings = [f"run.dir={folder}", "run.threads=1", "resume=auto", *overrides]
    lifecycle.train(config.load(name, settings))
    seconds = sum(read_json(folder / "summary.json")["cpu_seconds"].values())
    return evaluations(folder), seconds


def rows(name: str, columns: dict[str, str], found: Curve, seconds: float) -> list[str]:
    """Return a line of the table for each evaluation of a run."""
    lines = []
    for step, evaluation in found.items():
        means, intervals = evaluation["metrics"], evaluation["intervals"]
        cells = []
        for metric in columns:
            if metric not in means:  # nothing was cropped
                cells.append("-")
                continue
            low, high = intervals[metric]
            cells.append(f"{means[metric]:.3f} [{low:.3f}, {high:.3f}]")
        spent = f"{seconds:.0f}" if step == max(found) else ""
        lines.append(f"| {name} | {step} | {' | '.join(cells)} | {spent} |")
    return lines


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__)
    parser.add_argument("config", choices=COLUMNS)
    options = parser.parse_args()
    name, columns = options.config, COLUMNS[options.config]
    lines = head(f"| run | step | {' | '.join(columns.values())} | CPU s |")
    for seed in options.seeds:
        found, seconds = curve(name, options.runs / f"{name}-{seed}", f"run.seed={seed}")
        lines += rows(f"seed {seed}", columns, found, seconds)
    control = (f"run.seed={options.seeds[0]}", "control.shuffle_rewards=true", "run.steps=40")
    folder = options.runs / f"{name}-shuffled"
    found, seconds = curve(name, folder, *control, "evaluation.every=20")
    lines += rows("shuffled rewards", columns, found, seconds)
    text = "\n".join(lines)
    tell(text, options.out)


if __name__ == "__main__":
    main()
