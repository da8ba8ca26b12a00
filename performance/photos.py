"""White cells in real photos: what does GRPO add, and how much of it is seeing?

    python performance/photos.py --seeds 0 1 2 --runs runs/photos --out performance/results/photos.md

The config `bccd_grounding`, and beside it from the same cold start: rewards shuffled over the batch,
more imitation of the same loose boxes, imitation of tight boxes, and no learning at all but a
correction of the cold start's boxes, measured on the val photos: each side moved by its mean error
(constant), or mapped by the straight line that fits it best (linear). The distance between the centres
says what of a gain is not size. The best constant box is chosen on the test photos themselves, so it is a
bound. Intervals are 95 %, bootstrap over photos, paired between the same photos.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learning import from_one_start, interval, newest_evaluation, over_seeds, rows_of, tell
from tables import head

CONFIG = "bccd_grounding"
SIDE = 84
WHOLE = f"card: records, instruct: false, options: {{path: example:bccd, side: {SIDE}, ramp: 0.6}}"
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
COLUMNS = (
    "| seed | from the cold start | greedy IoU | paired gain | GRPO above it | better / worse "
    "| centre off, px | its change | GRPO's less that |"
)
Boxes = np.ndarray
"""[photos, 4] as x1, y1, x2, y2 in the unit square; nan where no box was answered."""


def iou(found: Boxes, true: Boxes) -> np.ndarray:
    """Return the IoU of each photo's box; 0 where there is none."""
    corner = np.minimum(found[:, 2:], true[:, 2:]) - np.maximum(found[:, :2], true[:, :2])
    shared = corner.clip(0).prod(axis=1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (found, true)]
    return np.nan_to_num(shared / (areas[0] + areas[1] - shared))


def centre_error(found: Boxes, true: Boxes) -> np.ndarray:
    """Return the distance between the centres, pixels of 84; 84 where no box was answered."""
    away = (found[:, :2] + found[:, 2:] - true[:, :2] - true[:, 2:]) / 2
    return np.nan_to_num(SIDE * np.hypot(away[:, 0], away[:, 1]), nan=SIDE)


def answers(folder: Path, step: int, source: str) -> tuple[Boxes, Boxes]:
    """Return the greedy and the true boxes of an evaluation, in the order of the photos' names."""
    rows = [row for row in rows_of(folder, step, "greedy") if row["source"] == source]
    rows.sort(key=lambda row: row["id"])
    found = [_answered(row["completions"][0]["verdicts"]["box_iou"]) for row in rows]
    true = [row["truth"]["boxes"][0]["box"] for row in rows]
    return np.array(found), np.array(true)


def _answered(verdict: Mapping[str, Any]) -> list[float]:
    boxes = verdict["answer"] or [{"box": [np.nan] * 4}]
    return list(boxes[0]["box"])


def corrected(folder: Path, degree: int) -> Boxes:
    """Return the first boxes on test, each side corrected by a polynomial fitted to the val photos.

    Degree 0 moves a side by its mean error; degree 1 is the straight line of least squares.
    """
    known, right = answers(folder, 0, "val")
    found, _ = answers(folder, 0, "test")
    moved = found.copy()
    for i in range(4):
        there = ~np.isnan(known[:, i])
        x, y = known[there, i], right[there, i]
        moved[:, i] = (
            found[:, i] + (y - x).mean()
            if degree == 0
            else np.polyval(np.polyfit(x, y, 1), moved[:, i])
        )
    return moved.clip(0, 1)


def best_constant(true: Boxes) -> float:
    """Return the mean IoU of the best of all boxes with corners on a grid of 12 x 12."""
    lines = np.linspace(0, 1, 13)
    ends = [(a, b) for a in lines for b in lines if a < b]
    boxes = (np.array([[x1, y1, x2, y2]]) for x1, x2 in ends for y1, y2 in ends)
    return max(iou(np.repeat(box, len(true), axis=0), true).mean() for box in boxes)


def lines_of(seed: int, cold: Path, runs: Mapping[str, Path]) -> list[str]:
    """Return the table's lines of a seed."""
    first, true = answers(runs["GRPO"], 0, "test")
    ways = {}
    for arm, folder in runs.items():
        ways[arm], same = answers(folder, newest_evaluation(folder), "test")
        assert np.array_equal(same, true)
    ways["constant correction, no learning"] = corrected(runs["GRPO"], 0)
    ways["linear correction, no learning"] = corrected(runs["GRPO"], 1)
    before, away = iou(first, true), centre_error(first, true)
    told = [f"| {seed} | {cold.name} | {interval(before)} | | | | {interval(away, 1)} | | |"]
    last, left = iou(ways["GRPO"], true), centre_error(ways["GRPO"], true)
    for way, boxes in ways.items():
        after, off = iou(boxes, true), centre_error(boxes, true)
        moved = f"{(after > before + 0.02).sum()} / {(after < before - 0.02).sum()}"
        above, less = (
            ("", "") if way == "GRPO" else (interval(last - after), interval(left - off, 1))
        )
        told.append(
            f"| {seed} | {way} | {interval(after)} | {interval(after - before)} | {above} | {moved} "
            f"| {interval(off, 1)} | {interval(off - away, 1)} | {less} |"
        )
    return told


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__, "runs/photos").parse_args()
    told = head(COLUMNS)
    for seed in options.seeds:
        cold, runs = from_one_start(CONFIG, options.runs, seed, ARMS, evaluated=[BOTH])
        told += lines_of(seed, cold, runs)
    _, true = answers(runs["GRPO"], 0, "test")
    told += ["", f"The best constant box earns {best_constant(true):.3f}."]
    tell("\n".join(told), options.out)


if __name__ == "__main__":
    main()
