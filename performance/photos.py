"""White cells in real photos: what does GRPO add, and how much of it is seeing?

    python performance/photos.py --seeds 0 1 2 --runs runs/photos --out performance/results/photos.md

The config `bccd_grounding`, and beside it from the same cold start: rewards shuffled over the batch,
more imitation of the same loose boxes, imitation of tight boxes, and no learning at all but a constant
correction: the cold start's boxes, their sides moved by the mean errors that it makes on the val photos.
The best constant box is chosen on the test photos themselves, so it is a bound. Intervals are 95 %,
bootstrap over photos, paired between the same photos.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learning import over_seeds, start, tell, train
from tables import head

CONFIG = "bccd_grounding"
WHOLE = "card: records, instruct: false, options: {path: example:bccd, side: 84, ramp: 0.6}"
BOTH = (
    f"evaluation.sources=[{{name: test, split: test, {WHOLE}}}, {{name: val, split: val, {WHOLE}}}]"
)
IMITATION = ("run.steps=0", "sft.max_steps=125", "sft.stop_at=null", "sft.lr=4e-4")
ARMS: Mapping[str, Sequence[str]] = {
    "GRPO": ("sft=null",),
    "rewards shuffled, 25 steps": ("sft=null", "control.shuffle_rewards=true", "run.steps=25"),
    "more imitation of the loose boxes": IMITATION,
    "imitation of tight boxes": (*IMITATION, "sft.sources.0.options.loose=0"),
}
Boxes = np.ndarray
"""[photos, 4] as x1, y1, x2, y2 in the unit square; nan where no box was answered."""


def iou(found: Boxes, true: Boxes) -> np.ndarray:
    """Return the IoU of each photo's box; 0 where there is none."""
    corner = np.minimum(found[:, 2:], true[:, 2:]) - np.maximum(found[:, :2], true[:, :2])
    shared = corner.clip(0).prod(axis=1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (found, true)]
    return np.nan_to_num(shared / (areas[0] + areas[1] - shared))


def answers(folder: Path, step: int, source: str) -> tuple[list[str], Boxes, Boxes]:
    """Return the photos of an evaluation by name, with the greedy and the true boxes."""
    lines = (folder / f"evals/step-{step}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [
        row
        for row in map(json.loads, lines)
        if row["source"] == source and row["drawn"] == "greedy"
    ]
    rows.sort(key=lambda row: row["id"])
    found = [_answered(row["completions"][0]["verdicts"]["box_iou"]) for row in rows]
    true = [row["truth"]["boxes"][0]["box"] for row in rows]
    return [row["id"] for row in rows], np.array(found), np.array(true)


def _answered(verdict: Mapping[str, Any]) -> list[float]:
    boxes = verdict["answer"] or [{"box": [np.nan] * 4}]
    return list(boxes[0]["box"])


def interval(values: np.ndarray, statistic: Callable[..., Any] = np.mean) -> str:
    """Return the mean with its 95 % interval."""
    chosen = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(statistic(values[chosen], axis=1), [0.025, 0.975])
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def corrected(folder: Path) -> np.ndarray:
    """Return the IoU on test of the first boxes, their sides moved by their mean errors on val."""
    _, found, true = answers(folder, 0, "val")
    shift = np.nanmean(true - found, axis=0)
    _, found, true = answers(folder, 0, "test")
    return iou((found + shift).clip(0, 1), true)


def best_constant(true: Boxes) -> float:
    """Return the mean IoU of the best of all boxes with corners on a grid of 12 x 12."""
    lines = np.linspace(0, 1, 13)
    ends = [(a, b) for a in lines for b in lines if a < b]
    boxes = (np.array([[x1, y1, x2, y2]]) for x1, x2 in ends for y1, y2 in ends)
    return max(iou(np.repeat(box, len(true), axis=0), true).mean() for box in boxes)


def centre_error(found: Boxes, true: Boxes) -> np.ndarray:
    """Return the distance between the centres, pixels of 84."""
    away = (found[:, :2] + found[:, 2:] - true[:, :2] - true[:, 2:]) / 2
    return 84 * np.hypot(away[:, 0], away[:, 1])


def lines_of(seed: int, cold: Path, runs: Mapping[str, Path]) -> list[str]:
    """Return the table's lines of a seed."""
    first = runs["GRPO"]
    names, found, true = answers(first, 0, "test")
    before = iou(found, true)
    away = np.nanmean(centre_error(found, true))
    told = [f"| {seed} | {cold.name} | {interval(before)} | | | {away:.1f} |"]
    for arm, folder in runs.items():
        last = max(int(path.stem[5:]) for path in (folder / "evals").glob("step-*.json"))
        same, found, true = answers(folder, last, "test")
        assert same == names
        after = iou(found, true)
        away = np.nanmean(centre_error(found, true))
        moved = f"{(after > before + 0.02).sum()} / {(after < before - 0.02).sum()}"
        told.append(
            f"| {seed} | {arm} | {interval(after)} | {interval(after - before)} | {moved} | {away:.1f} |"
        )
        if arm == "GRPO":
            by_size = corrected(folder)
            told.append(f"| {seed} | constant correction, no learning | {interval(by_size)} | "
                        f"{interval(by_size - before)} | | |")  # fmt: skip
            told.append(f"| {seed} | GRPO above that | | {interval(after - by_size)} | | |")
    return told


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__, "runs/photos").parse_args()
    told = head(
        "| seed | from the cold start | greedy IoU | paired gain | better / worse | centre off, px |"
    )
    for seed in options.seeds:
        cold = start(CONFIG, options.runs / f"start-{seed}", seed)
        runs = {}
        for arm, settings in ARMS.items():
            runs[arm] = options.runs / f"{arm.replace(', ', '-').replace(' ', '_')}-{seed}"
            begun = [
                f"model.path={cold}",
                "model.build=null",
                f"run.seed={seed}",
                "run.report=false",
            ]
            train(CONFIG, runs[arm], [*begun, BOTH, *settings])
        told += lines_of(seed, cold, runs)
    _, _, true = answers(runs["GRPO"], 0, "test")
    told += ["", f"The best constant box earns {best_constant(true):.3f}."]
    tell("\n".join(told), options.out)


if __name__ == "__main__":
    main()
