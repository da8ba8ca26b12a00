"""Spoken digits in real audio: what does GRPO add to what is heard, beside more imitation?

    python performance/digits.py --seeds 0 1 2 --runs runs/digits --out performance/results/spoken_digits.md
    python performance/digits.py --config whisper_digits --out performance/results/whisper_digits.md
    python performance/digits.py --config whisper_sequences --out performance/results/whisper_sequences.md
    python performance/digits.py --config drum_hits --out performance/results/drum_hits.md

The config `spoken_digits`, or another of its task, and beside it from the same cold start: rewards shuffled
over the batch, more imitation of the files that the cold start imitated, and imitation of the right answers
to the files that GRPO hears. The score is the config's `evaluation.metric`. An answer is right or wrong, or a
word of it is, so no constant correction can earn anything. Under "all", each file counts with its mean over
the seeds. Intervals are 95 %, bootstrap over files, paired between the same files; those of "all" are of
these seeds, not of others.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from learning import from_one_start, interval, newest_evaluation, over_seeds, rows_of, tell
from tables import head

from vlmrl import config

DRAWN = ("greedy", "sampled")
IMITATION = ("run.steps=0", "sft.max_steps=100", "sft.stop_at=null", "sft.lr=4e-4")
ARMS: Mapping[str, Sequence[str]] = {
    "GRPO": ("sft=null",),
    "more imitation of the same files": IMITATION,
    "imitation of GRPO's files": (*IMITATION, "sft.sources.0.split=train[50%:]"),
    "rewards shuffled, 25 steps": ("sft=null", "control.shuffle_rewards=true", "run.steps=25"),
}

WHOLE: Mapping[str, Sequence[str]] = {"drum_hits": ("sft.sources.0.options.missing=0",)}
"""What makes the demonstrations of a config right where its own are not."""


def scores_of(folder: Path, step: int, drawn: str, metric: str) -> np.ndarray:
    """Return the mean score of the answers to each file of an evaluation, in the order of their names."""
    scores: dict[str, list[float]] = {}
    for row in rows_of(folder, step, drawn):
        verdicts = [answer["verdicts"][metric] for answer in row["completions"]]
        scores.setdefault(row["id"], []).extend(verdict["score"] for verdict in verdicts)
    return np.array([np.mean(scores[name]) for name in sorted(scores)])


def lines_of(
    label: str, begin: str, seeds: Sequence[Mapping[str, Path]], metric: str, ways: Sequence[str]
) -> list[str]:
    """Return the table's lines of the runs of a seed, or of the means of each file over several.

    `ways` are those of drawing answers that have columns.
    """
    cells: dict[str, list[str]] = {way: [] for way in (begin, *seeds[0])}
    for drawn in ways:
        first = np.mean([scores_of(runs["GRPO"], 0, drawn, metric) for runs in seeds], axis=0)
        found = {}
        for arm in seeds[0]:
            ends = [(runs[arm], newest_evaluation(runs[arm])) for runs in seeds]
            found[arm] = np.mean([scores_of(*end, drawn, metric) for end in ends], axis=0)
        cells[begin] += [interval(first), "", ""]
        for arm, values in found.items():
            above = "" if arm == "GRPO" else interval(found["GRPO"] - values)
            cells[arm] += [interval(values), interval(values - first), above]
    return [f"| {label} | {way} | {' | '.join(told)} |" for way, told in cells.items()]


def table(
    settings: str,
    arms: Mapping[str, Sequence[str]],
    options: Namespace,
    ways: Sequence[str] = DRAWN,
) -> list[str]:
    """Return the lines of a config's table: each seed's arms, trained where they are not there, and all."""
    evaluation = config.load(settings).evaluation
    assert evaluation is not None
    headings = (f"{drawn} | {drawn} gain | GRPO above it, {drawn}" for drawn in ways)
    told = head(f"| seed | from the cold start | {' | '.join(headings)} |")
    seeds: list[dict[str, Path]] = []
    for seed in options.seeds:
        cold, runs = from_one_start(settings, options.runs, seed, arms)
        seeds.append(runs)
        told += lines_of(str(seed), cold.name, [runs], evaluation.metric, ways)
    if len(seeds) > 1:
        told += lines_of("all", "cold start", seeds, evaluation.metric, ways)
    return told


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/digits")
    parser.add_argument("--config", default="spoken_digits")
    options = parser.parse_args()
    right = (*ARMS["imitation of GRPO's files"], *WHOLE.get(options.config, ()))
    arms = {**ARMS, "imitation of GRPO's files": right}
    tell("\n".join(table(options.config, arms, options)), options.out)


if __name__ == "__main__":
    main()
