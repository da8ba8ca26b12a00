"""What start, step, evaluation and report of the quickstart cost in CPU seconds, beside other commits.

    git archive 87e8f51 --prefix=before/ | tar x
    python performance/quickstart_cost.py before . [--rounds 3]

Every tree runs with this Python and its packages, on one thread, without the cold start, whose steps
depend on chance. The trees take turns; medians over the rounds of differences of whole processes: a step is
(22 steps - 2 steps) / 20, an evaluation half of what the two of a run add, start is what is left of a
run of 2 steps once these and `vlmrl report` are taken away; that writes the same page as the run's end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from startup import cpu_seconds
from tables import head

STEPS = (2, 22)
COLUMNS = ("start", "step", "evaluation", "report", "start + report")


def costs(tree: Path, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of each phase in one tree; runs are written below `folder`."""

    def train(steps: int, *overrides: str) -> float:
        keys = [f"run.steps={steps}", f"run.dir={folder / str(steps)}", "resume=never"]
        command = ["-m", "vlmrl", "train", "quickstart", "run.threads=1", "sft=null", *keys]
        return cpu_seconds([*command, *overrides], tree)

    few, many = (train(steps, "evaluation=null") for steps in STEPS)
    report = cpu_seconds(["-m", "vlmrl", "report", str(folder / str(STEPS[1]))], tree)
    step = (many - few) / (STEPS[1] - STEPS[0])
    evaluation = (train(STEPS[0] + 1) - few - step) / 2
    start = few - STEPS[0] * step - report
    return dict(zip(COLUMNS, (start, step, evaluation, report, start + report), strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    measured: dict[Path, list[dict[str, float]]] = {tree: [] for tree in asked.trees}
    for _ in range(asked.rounds):
        for tree, rounds in measured.items():
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(costs(tree.resolve(), Path(folder)))
            print(f"{tree}: {rounds[-1]}", flush=True)
    print(*head(f"| tree | {' | '.join(f'{column}, s' for column in COLUMNS)} |"), sep="\n")
    for tree, rounds in measured.items():
        cells = [f"{statistics.median(each[c] for each in rounds):.2f}" for c in COLUMNS]
        print(f"| {tree} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
