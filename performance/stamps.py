"""Cut-outs seen by a frozen DINOv2: what does GRPO add where demonstrations leave out a third of the boxes?

    python performance/stamps.py --seeds 0 --stamps FOLDER --eyes FOLDER

The config `stamps`, and beside it from the same cold start: more imitation of the same loose and incomplete
boxes, imitation of all boxes as they are, rewards shuffled over the batch, and no learning at all but a
correction of the cold start's boxes, fitted to the val scenes: each side moved by its mean error (constant),
or mapped by the straight line that fits it best (linear). A number is right where there are as many boxes
as things. Test scenes hold cut-outs that no training scene holds. Hits reach an IoU of 0.5. Intervals are
95 %, bootstrap over scenes, paired between the same scenes; those of "all" are of these seeds, not of others.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from learning import from_one_start, interval, newest_evaluation, over_seeds, rows_of, tell
from tables import head

from vlmrl.answers.geometry import iou_matrix, pairs

CONFIG = "stamps"
IMITATION = ("run.steps=0", "sft.max_steps=300", "sft.stop_at=null", "sft.lr=4e-4")
TIGHT = [f"sft.sources.0.options.{key}=0" for key in ("missing", "loose", "grid")]
ARMS: Mapping[str, Sequence[str]] = {
    "GRPO": ("sft=null",),
    "more imitation of the same boxes": IMITATION,
    "rewards shuffled, 25 steps": ("sft=null", "control.shuffle_rewards=true", "run.steps=25"),
    "imitation of all boxes, exact": (*IMITATION, *TIGHT),
}
Scenes = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""By scene the boxes that were found and the true ones, [*, 4] as x1, y1, x2, y2 in the unit square."""


def scenes(folder: Path, step: int, source: str) -> Scenes:
    """Return what an evaluation's greedy answers found, in the order of the scenes' names."""
    rows = [row for row in rows_of(folder, step, "greedy") if row["source"] == source]
    found = {}
    for row in sorted(rows, key=lambda row: row["id"]):
        answer = row["completions"][0]["verdicts"]["detection"]["answer"] or []
        lists = (answer, row["truth"]["boxes"])
        boxes = (np.array([box["box"] for box in own]).reshape(-1, 4) for own in lists)
        found[row["id"]] = tuple(boxes)
    return found


def matched(found: np.ndarray, true: np.ndarray, least: float) -> list[tuple[int, int]]:
    """Return the pairs of found and true boxes, one to one, whose IoU is at least `least`."""
    return pairs(iou_matrix(found, true), least)


def f1(seen: Scenes) -> np.ndarray:
    """Return each scene's F1: twice the hits, over the boxes found and the true ones."""
    hits = [2 * len(matched(*boxes, 0.5)) / sum(map(len, boxes)) for boxes in seen.values()]
    return np.array(hits)


def recall(seen: Scenes) -> np.ndarray:
    """Return the share of each scene's boxes that are found."""
    return np.array([len(matched(*boxes, 0.5)) / len(boxes[1]) for boxes in seen.values()])


def number_right(seen: Scenes) -> np.ndarray:
    """Return 1 for each scene where there are as many boxes as things, else 0."""
    return np.array([float(len(found) == len(true)) for found, true in seen.values()])


def corrected(folder: Path, degree: int) -> Scenes:
    """Return the first boxes on test, each side corrected by a polynomial fitted to the val scenes.

    Degree 0 moves a side by its mean error; degree 1 is the straight line of least squares.
    """
    known = [
        (found[i], true[j])
        for found, true in scenes(folder, 0, "val").values()
        for i, j in matched(found, true, 0.1)
    ]
    before, right = (np.array(boxes) for boxes in zip(*known, strict=True))
    moved = {}
    for name, (found, true) in scenes(folder, 0, "test").items():
        sides = [
            side + (right[:, i] - before[:, i]).mean()
            if degree == 0
            else np.polyval(np.polyfit(before[:, i], right[:, i], 1), side)
            for i, side in enumerate(found.T)
        ]
        moved[name] = (np.stack(sides, axis=1).clip(0, 1), true)
    return moved


def number_corrected(folder: Path) -> np.ndarray:
    """Return 1 for each test scene whose number is right after a correction without learning, else 0.

    An answer with n boxes counts as the number of things that is most frequent among the val scenes whose
    answer has n boxes.
    """
    true_numbers: dict[int, Counter[int]] = defaultdict(Counter)
    for found, true in scenes(folder, 0, "val").values():
        true_numbers[len(found)][len(true)] += 1
    mapped = {number: counted.most_common(1)[0][0] for number, counted in true_numbers.items()}
    seen = scenes(folder, 0, "test").values()
    return np.array([float(mapped.get(len(f), len(f)) == len(true)) for f, true in seen])


def ways_of(runs: Mapping[str, Path]) -> dict[str, Scenes]:
    """Return by way what was found on test, the cold start first."""
    ways = {"cold start": scenes(runs["GRPO"], 0, "test")}
    ways |= {arm: scenes(folder, newest_evaluation(folder), "test") for arm, folder in runs.items()}
    ways["constant correction, no learning"] = corrected(runs["GRPO"], 0)
    ways["linear correction, no learning"] = corrected(runs["GRPO"], 1)
    return ways


def lines_of(label: str, seeds: Sequence[Mapping[str, Scenes]]) -> list[str]:
    """Return the table's lines of a seed, or of the means of each scene over several."""
    scores, recalls, numbers = (
        {way: np.mean([measure(ways[way]) for ways in seeds], axis=0) for way in seeds[0]}
        for measure in (f1, recall, number_right)
    )
    told = []
    for way, values in scores.items():
        gain = "" if way == "cold start" else interval(values - scores["cold start"])
        above = "" if way == "GRPO" else interval(scores["GRPO"] - values)
        boxes = np.mean([np.mean([len(b[0]) for b in ways[way].values()]) for ways in seeds])
        more = "" if way == "GRPO" else interval(numbers["GRPO"] - numbers[way])
        told.append(
            f"| {label} | {way} | {interval(values)} | {gain} | {above} | {interval(recalls[way])} "
            f"| {interval(numbers[way])} | {more} | {boxes:.2f} |"
        )
    return told


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/stamps")
    parser.add_argument("--stamps", default="/usr/share/tuxpaint/stamps", help="the cut-outs")
    parser.add_argument("--eyes", default="facebook/dinov2-small", help="a DINOv2: name or folder")
    options = parser.parse_args()
    whole = f"card: stamps, instruct: false, options: {{path: '{options.stamps}'}}"
    where = [
        f"{source}.options.path={options.stamps}"
        for source in ("data.train.0", "sft.sources.0", "sft.validation.0")
    ]
    eyes = f"model.build.weights.vision={options.eyes}"
    both = f"evaluation.sources=[{{name: test, split: test, {whole}}}, {{name: val, split: val, {whole}}}]"
    told = head(
        "| seed | way | greedy F1 | paired gain | GRPO above it | recall | number right "
        "| GRPO above it, number | boxes |"
    )
    seeds, corrections = [], []
    for seed in options.seeds:
        _, runs = from_one_start(CONFIG, options.runs, seed, ARMS, [*where, eyes], [both])
        seeds.append(ways_of(runs))
        told += lines_of(str(seed), seeds[-1:])
        mapped = number_corrected(runs["GRPO"])
        above = interval(number_right(seeds[-1]["GRPO"]) - mapped)
        corrections.append(
            f"Seed {seed}: the cold start's numbers, corrected without learning, are right in "
            f"{interval(mapped)} of the scenes; GRPO above that {above}."
        )
    if len(seeds) > 1:
        told += lines_of("all", seeds)
    tell("\n".join([*told, "", *corrections]), options.out)


if __name__ == "__main__":
    main()
