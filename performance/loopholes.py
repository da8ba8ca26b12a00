"""Does the loophole watch see planted loopholes in time, is it silent on honest runs, and what does it cost?

    python performance/loopholes.py --runs runs/loopholes --out performance/results/loopholes.md
    python performance/loopholes.py --only quickstart chain cost

Honest runs are shipped configs, some with fewer steps. Planted ones begin at a cold start that shows a trick
in a share of its demonstrations (`loophole_tricks.py`), with a reward that pays it (the tests'
`loose_rewards.py`): the policy has to find by itself that the trick is worth more. Rewards and readings are
means of the first and of the last 8 steps. "Tricks" is the share of completions that show it. "Cost" runs
steps of the quickstart in turns with and without the watch, in CPU seconds of the process.

Run it where the repository is. Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from learning import evaluations, over_seeds, start, tell, train
from tables import head

from vlmrl import config
from vlmrl.assemble import build, lifecycle
from vlmrl.monitoring.loopholes import REWARD, SIGNALS, WINDOW
from vlmrl.policy.checkpoint import Progress
from vlmrl.runs import run_folder

HONEST: Mapping[str, Sequence[str]] = {
    "quickstart": ("run.steps=60", "evaluation.every=60"),
    "bccd_grounding": (),
    "look_twice": ("run.steps=50", "evaluation.every=50"),
    "spoken_digits": ("run.steps=60", "evaluation.every=60", "evaluation.samples=1"),
    "video_grounding": ("run.steps=40", "evaluation.every=40"),
}
"""Shipped configs, and what is shortened."""
REWARDS = Path(__file__).parents[1] / "tests/helpers/loose_rewards.py"
NUMBER_AND_FORM = "[{verifier: number}, {verifier: format}]"
PLANTED: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "any integer": (f"[{REWARDS}:any_integer]", "loophole/candidates", ()),
    "chain": (
        f"[{REWARDS}:best_of_chain]",
        "loophole/candidates",
        (
            "data.video={fps: 1.0, max_frames: 16}",
            "model.build.vision={depth: 1, tokens_per_second: 1}",
        ),
    ),
    "copied question": (f"[{REWARDS}:mentions]", "loophole/candidates", ()),
    "repeated boxes": (f"[{REWARDS}:summed_iou]", "loophole/candidates", ()),
    "no tags": (NUMBER_AND_FORM, "reward/format", ("data.train.0.options.share=0.6",)),
}
"""By trick: the reward that pays it, the curve of its share, and other settings."""
PAIRS = 30
"""Steps with the watch, and as many without, of which the cost is told."""
Lines = Sequence[Mapping[str, Any]]


def means(lines: Lines, name: str) -> list[str]:
    """Return the mean of a curve over the first and over the last steps."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return [f"{statistics.fmean(part):.2f}" for part in (values[:WINDOW], values[-WINDOW:])]


def alarms(lines: Lines) -> dict[str, int]:
    """Return by signal the step of its first flag."""
    flags = {signal: f"loophole/flag/{signal}" for signal in SIGNALS}
    raised = {s: [line["step"] for line in lines if line.get(f)] for s, f in flags.items()}
    return {signal: steps[0] for signal, steps in raised.items() if steps}


def told(found: Mapping[str, int]) -> str:
    """Return the alarms in words."""
    return ", ".join(f"{signal} at {step}" for signal, step in found.items()) or "none"


def begin_at(checkpoint: Path, seed: int) -> list[str]:
    """Return the settings of a run that begins at the checkpoint of a cold start."""
    begun = [f"model.path={checkpoint}", "model.build=null", "sft=null", f"run.seed={seed}"]
    return [*begun, "run.threads=1", "run.report=false", "tracking.tensorboard=false"]


def honest_row(name: str, seed: int, runs: Path) -> str:
    """Train a shipped config from its own cold start, and return its line."""
    folder = runs / f"{name}-{seed}"
    settings = [*begin_at(start(name, runs / f"start-{name}-{seed}", seed), seed), *HONEST[name]]
    train(name, folder, settings)
    lines, held_out = run_folder.read_metrics(folder), evaluations(folder)
    metric = config.load(name, settings).evaluation.metric
    first, last = (held_out[step]["metrics"][metric] for step in (min(held_out), max(held_out)))
    cells = (
        *means(lines, REWARD),
        *means(lines, "loophole/strict"),
        *means(lines, "loophole/margin"),
    )
    spans = [" -> ".join(cells[i : i + 2]) for i in (0, 2, 4)]
    return (
        f"| {name} | {seed} | {lines[-1]['step']} | {' | '.join(spans)} | "
        f"{metric} {first:.3f} -> {last:.3f} | {told(alarms(lines))} |"
    )


def planted_row(trick: str, seed: int, runs: Path) -> str:
    """Train a policy that knows a trick on the reward that pays it, and return its line."""
    reward, shown, more = PLANTED[trick]
    name = trick.replace(" ", "_")
    options = [f"data.train.0.options.trick={trick}", f"sft.sources.0.options.trick={trick}"]
    share = [one.replace("data.train", "sft.sources") for one in more if "options.share" in one]
    settings = [*options, *more, *share, f"rewards={reward}"]
    train("loophole", runs / f"{name}-{seed}", [f"run.seed={seed}", *settings])
    lines = run_folder.read_metrics(runs / f"{name}-{seed}")
    found = alarms(lines)
    first = statistics.fmean(line[REWARD] for line in lines[:WINDOW])
    at = min(found.values(), default=lines[-1]["step"])
    then = statistics.fmean(line[REWARD] for line in lines[at - WINDOW : at])
    spans = [
        " -> ".join(means(lines, key))
        for key in (REWARD, "loophole/strict", "loophole/margin", shown)
    ]
    return (
        f"| {trick} | {seed} | {' | '.join(spans)} | {told(found)} | "
        f"{f'{then / first:.2f}' if found else '-'} |"
    )


def cost(folder: Path, begin: Path) -> str:
    """Run steps of the quickstart in turns with and without the watch, and say what it costs."""
    settings = config.load(
        "quickstart",
        [f"run.dir={folder}", "checks.media_ablation_every=0", *begin_at(begin, 0)],
    )
    spent: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as stack:
        trainer = build.build_trainer(settings, None, Progress(), stack)
        lifecycle.begin_rl(trainer, None, Progress())
        watch = trainer.loopholes
        for number in range(2 * PAIRS + 2):
            watched = number % 2 == 0
            trainer.loopholes = watch if watched else None
            began = time.process_time()
            trainer.step()
            if number > 1:  # the first ones load what all need
                spent[watched].append(time.process_time() - began)
    on, off = (statistics.fmean(spent[watched]) for watched in (True, False))
    pairs = [a - b for a, b in zip(*spent.values(), strict=True)]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    return (
        f"A step of the quickstart takes {1000 * off:.0f} ms of CPU without the watch and "
        f"{1000 * on:.0f} with it, {100 * (on / off - 1):.1f} % more: {1000 * statistics.fmean(pairs):.0f} "
        f"+- {1000 * error:.0f} ms, {PAIRS} steps of each kind, in turns."
    )


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/loopholes")
    parser.set_defaults(seeds=[0])
    every = [*HONEST, *PLANTED, "cost"]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    options = parser.parse_args()
    rows = head("| honest run | seed | steps | reward | strict | margin | held out | alarms |")
    for name in (one for one in HONEST if one in options.only):
        rows += [honest_row(name, seed, options.runs) for seed in options.seeds]
    rows += [
        "",
        *head(
            "| planted | seed | reward | strict | margin | tricks | alarms | reward then / at first |"
        ),
    ]
    for trick in (one for one in PLANTED if one in options.only):
        rows += [planted_row(trick, seed, options.runs) for seed in options.seeds]
    if "cost" in options.only:
        begin = start("quickstart", options.runs / "start-quickstart-0", 0)
        rows += ["", cost(options.runs / "cost", begin)]
    tell("\n".join(rows), options.out)


if __name__ == "__main__":
    main()
