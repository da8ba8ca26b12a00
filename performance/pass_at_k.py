"""What do algorithms do to pass@1, and what to pass@64?

    python performance/pass_at_k.py --seeds 0 1 2 --runs runs/pass_at_k --out performance/results/pass_at_k.md

The config `configs/pass_at_k.yaml` beside this file, all algorithms from the quickstart's cold start: a box
is right or wrong. Expected from the papers: GRPO and PSR raise pass@1 and lower pass@64, NSR keeps it (arXiv
2506.01347), DPH-RL keeps it by rehearsal (arXiv 2509.07430).

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from typing import Any

from learning import Curve, curve, over_seeds, start, tell
from tables import head

CONFIG = "pass_at_k"
WAYS = {
    "grpo": ("algorithm=grpo",),
    "psr": ("algorithm=psr",),
    "nsr": ("algorithm=nsr",),
    "dph, rehearsing": ("algorithm=dph", "strategies=[rehearsal]"),
    "w_reinforce": ("algorithm=w_reinforce",),
    "grpo, shuffled rewards": ("algorithm=grpo", "control.shuffle_rewards=true", "run.steps=40"),
}
KS = (1, 4, 16, 64)


def shares(evaluation: dict[str, Any]) -> list[str]:
    """Return the share of right greedy answers, and pass@k for each k."""
    values = [evaluation["metrics"]["box_iou"], *(evaluation["pass_at_k"][str(k)] for k in KS)]
    return [f"{value:.3f}" for value in values]


def table(curves: dict[int, dict[str, Curve]]) -> str:
    """Return pass@k before, and after each algorithm, as a Markdown table."""
    rows = head(f"| seed | algorithm | greedy | {' | '.join(f'pass@{k}' for k in KS)} |")
    for seed, ways in curves.items():
        before = next(iter(ways.values()))
        lines = [
            ("before", before, 0),
            *((name, found, max(found)) for name, found in ways.items()),
        ]
        rows += [
            f"| {seed} | {name} | {' | '.join(shares(found[step]))} |"
            for name, found, step in lines
        ]
    return "\n".join(rows)


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/pass_at_k")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    curves: dict[int, dict[str, Curve]] = {}
    for seed in options.seeds:
        begin = start("quickstart", options.runs / f"start-{seed}", seed)
        curves[seed] = {
            name: curve(
                CONFIG,
                options.runs / f"{name.replace(', ', '-')}-{seed}",
                seed,
                begin,
                f"run.steps={options.steps}",
                *way,
            )
            for name, way in WAYS.items()
        }
    text = table(curves)
    tell(text, options.out)


if __name__ == "__main__":
    main()
