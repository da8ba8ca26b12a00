"""Does a sampler that follows the rewards reach the plain run's held-out IoU in fewer steps?

    python performance/curricula.py --seeds 0 1 2 --runs runs/curricula --out performance/results/curricula.md

The config `configs/difficulty_mixed.yaml` beside this file, all samplers from the same cold start. At which
step does a run first reach the held-out IoU that the plain one (`mixture`) has at its end? The bar is 70 % of
the plain run's steps, on every seed. With rewards shuffled over the batch nothing may be gained. `adarft`
has its difficulties from `vlmrl data rate` of the cold start, 8 samples a row.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from pathlib import Path

from learning import CONFIGS, Curve, curve, over_seeds, start, tell
from tables import head

from vlmrl import config
from vlmrl.features.curate.rate import rate

CONFIG = "difficulty_mixed"
WAYS = {
    "mixture": (),
    "cdas": ("data.sampler=cdas",),
    "prioritised": ("data.sampler=prioritised",),
    "adarft": (
        "data.sampler={name: adarft, options: {difficulty: pass_rate, descending: true, highest: 1, "
        "step_size: 0.1}}",
    ),
    "cdas, shuffled rewards": ("data.sampler=cdas", "control.shuffle_rewards=true", "run.steps=40"),
}


def ratings(file: Path, begin: Path) -> list[str]:
    """Return the overrides that give the sources their pass rates; makes the file if it is not there."""
    if not file.exists():
        rate(config.load(str(CONFIGS / f"{CONFIG}.yaml")), file, model=str(begin))
    return [f"data.train.{name}.ratings={file}" for name in ("known", "learnable", "hopeless")]


def values(found: Curve) -> dict[int, float]:
    """Return the held-out greedy IoU by step."""
    return {step: evaluation["metrics"]["box_iou"] for step, evaluation in found.items()}


def reached(found: Curve, goal: float) -> int | None:
    """Return the first evaluated step with at least that IoU; None: never."""
    return next((step for step, value in values(found).items() if value >= goal), None)


def table(curves: dict[int, dict[str, Curve]]) -> str:
    """Return all curves, and when each reaches the plain run's last value, as a Markdown table."""
    steps = sorted(next(iter(curves.values()))["mixture"])
    rows = head(
        f"| seed | sampler | {' | '.join(map(str, steps))} | reaches the plain run's last at | share |"
    )
    for seed, ways in curves.items():
        goal = values(ways["mixture"])[steps[-1]]
        for name, found in ways.items():
            seen, at = values(found), reached(found, goal)
            cells = [f"{seen[s]:.3f}" if s in seen else "" for s in steps]
            low, high = found[max(found)]["intervals"]["box_iou"]
            cells[steps.index(max(found))] += f" [{low:.3f}, {high:.3f}]"
            share = "" if at is None else f"{at / steps[-1]:.0%}"
            rows.append(
                f"| {seed} | {name} | {' | '.join(cells)} | {'never' if at is None else at} | {share} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__, "runs/curricula").parse_args()
    curves: dict[int, dict[str, Curve]] = {}
    for seed in options.seeds:
        begin = start(CONFIG, options.runs / f"start-{seed}", seed)
        rated = ratings(options.runs / f"ratings-{seed}.jsonl", begin)
        curves[seed] = {}
        for name, way in WAYS.items():
            folder = options.runs / f"{name.replace(', ', '-')}-{seed}"
            more = rated if name == "adarft" else []
            curves[seed][name] = curve(CONFIG, folder, seed, begin, *way, *more)
    text = table(curves)
    tell(text, options.out)


if __name__ == "__main__":
    main()
