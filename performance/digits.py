"""Spoken digits in real audio: what does GRPO add to which digit is heard, beside more imitation?

    python performance/digits.py --seeds 0 1 2 --runs runs/digits --out performance/results/spoken_digits.md
    python performance/digits.py --config whisper_digits --out performance/results/whisper_digits.md

The config `spoken_digits`, or another of its task, and beside it from the same cold start: rewards shuffled
over the batch, more imitation of the files that the cold start imitated, and imitation of the right answers
to the files that GRPO hears. An answer is right or wrong, so no constant correction can earn anything; one
digit for all files earns 0.10. Under "all", each file counts with its mean over the seeds. Intervals are
95 %, bootstrap over files, paired between the same files; those of "all" are of these seeds, not of others.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from learning import interval, newest_evaluation, over_seeds, rows_of, start, tell, train
from tables import head

DRAWN = ("greedy", "sampled")
IMITATION = ("run.steps=0", "sft.max_steps=100", "sft.stop_at=null", "sft.lr=4e-4")
ARMS: Mapping[str, Sequence[str]] = {
    "GRPO": ("sft=null",),
    "more imitation of the same files": IMITATION,
    "imitation of GRPO's files": (*IMITATION, "sft.sources.0.split=train[50%:]"),
    "rewards shuffled, 25 steps": ("sft=null", "control.shuffle_rewards=true", "run.steps=25"),
}


def right(folder: Path, step: int, drawn: str) -> np.ndarray:
    """Return the share of right answers to each file of an evaluation, in the order of their names."""
    found: dict[str, list[float]] = {}
    for row in rows_of(folder, step, drawn):
        scores = [answer["verdicts"]["exact"]["score"] for answer in row["completions"]]
        found.setdefault(row["id"], []).extend(scores)
    return np.array([np.mean(found[name]) for name in sorted(found)])


def lines_of(label: str, begin: str, seeds: Sequence[Mapping[str, Path]]) -> list[str]:
    """Return the table's lines of the runs of a seed, or of the means of each file over several."""
    cells: dict[str, list[str]] = {way: [] for way in (begin, *seeds[0])}
    for drawn in DRAWN:
        first = np.mean([right(runs["GRPO"], 0, drawn) for runs in seeds], axis=0)
        found = {
            arm: np.mean(
                [right(runs[arm], newest_evaluation(runs[arm]), drawn) for runs in seeds], axis=0
            )
            for arm in seeds[0]
        }
        cells[begin] += [interval(first), "", ""]
        for arm, values in found.items():
            above = "" if arm == "GRPO" else interval(found["GRPO"] - values)
            cells[arm] += [interval(values), interval(values - first), above]
    return [f"| {label} | {way} | {' | '.join(told)} |" for way, told in cells.items()]


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/digits")
    parser.add_argument("--config", default="spoken_digits")
    options = parser.parse_args()
    headings = (f"{drawn} | {drawn} gain | GRPO above it, {drawn}" for drawn in DRAWN)
    told = head(f"| seed | from the cold start | {' | '.join(headings)} |")
    seeds: list[dict[str, Path]] = []
    for seed in options.seeds:
        cold = start(options.config, options.runs / f"start-{seed}", seed)
        runs = {}
        for arm, settings in ARMS.items():
            name = arm.replace(", ", "-").replace(" ", "_").replace("'", "")
            runs[arm] = options.runs / f"{name}-{seed}"
            begun = [f"model.path={cold}", "model.build=null", f"run.seed={seed}"]
            train(
                options.config, runs[arm], [*begun, "run.threads=1", "run.report=false", *settings]
            )
        seeds.append(runs)
        told += lines_of(str(seed), cold.name, [runs])
    if len(seeds) > 1:
        told += lines_of("all", "cold start", seeds)
    tell("\n".join(told), options.out)


if __name__ == "__main__":
    main()
