"""vlmrl, TRL's GRPOTrainer and ms-swift's GRPO from one cold start to one held-out value: time and memory.

    python performance/race.py --tasks shapes --seeds 0 1 2 --runs runs/race --out performance/results/race.md
    python performance/race.py --swift path/to/a/python/with/ms-swift

All load the same folder, written by `vlmrl export` after a cold start, and train all of it in float32
(`--dtype bfloat16`: computed in that) on the same rows with the same rewards (the others through our
adaptors), groups, prompts, lengths, learning rate, AdamW and loss. They take turns, step by step, with one
thread each. Every trainer's checkpoints of the same steps are then evaluated by ours, greedily, on the same
held-out rows. The value to reach is the highest that all reach after the start; a trainer has reached it at
its first checkpoint that has it, which may be below the start's. Seconds are those of the steps until then,
the saving of earlier checkpoints included and starting not; memory is the most of the process and of those
that it starts, imports included.

The tasks are the configs `configs/race_*.yaml` beside this file; `race_arms/` holds how the others are
called. A trainer that fails is in the table with its error. What is finished is read, not run again: a
trainer that was stopped begins anew.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from learning import CONFIGS, evaluations, over_seeds, start, tell
from race_arms.commands import TRAINERS, Heat, commands
from race_arms.heat import FAULT, ROOT, STAMPS, race
from race_arms.rows import write_rows
from race_arms.table import Result, curves_of, lines_of, lines_over_seeds
from tables import head

from vlmrl import config
from vlmrl.assemble import lifecycle


@dataclass(frozen=True)
class Task:
    """What trainers do: the config `race_<name>`."""

    forward: int
    """Completions that TRL and ms-swift put through the model at a time."""
    after: str = ""
    """The task from whose cold start its own goes on."""


TASKS = {
    "shapes": Task(128),
    "p256": Task(32, after="shapes"),
    "p1024": Task(8, after="p256"),
    "images": Task(64),
    "video": Task(128),
    "thought": Task(32),
    "photos": Task(128),
}
COLUMNS = (
    "| task | seed | trainer | value | at step | CPU s a step | CPU s | wall s | peak MiB |",
    "| task | seed | trainer | held-out value before and by checkpoint |",
    "| task | trainer | seeds | last value | CPU s a step, times ours | peak memory, times ours |",
)


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/race")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--steps", type=int, help="absent: as the configs say")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="computed in"
    )
    parser.add_argument("--swift", help="a Python that has ms-swift; absent: without it")
    asked = parser.parse_args()
    runs = asked.runs.absolute()
    table, curves, summary = (head(columns) for columns in COLUMNS)
    for task in asked.tasks:
        by_seed: list[dict[str, Result]] = []
        for seed in asked.seeds:
            changes = [f"run.seed={seed}", f"model.dtype={asked.dtype}"]
            changes += [f"run.steps={asked.steps}"] if asked.steps else []
            file, folder = CONFIGS / f"race_{task}.yaml", runs / f"{task}-{seed}"
            heat = Heat(file, folder, changes, TASKS[task].forward)
            if heat.settings.run.steps < heat.settings.run.save_every:
                every = heat.settings.run.save_every
                parser.error(f"--steps: expected at least {every}, the first checkpoint of {task}")
            cold = cold_start(task, seed, runs)
            by_seed.append(results := run(heat, cold, asked.swift))
            table += [f"| {task} | {seed} | {line}" for line in lines_of(results)]
            curves += [f"| {task} | {seed} | {line}" for line in curves_of(results)]
        summary += [f"| {task} | {line}" for line in lines_over_seeds(by_seed)]
    tell("\n".join([heading(), "", *table, "", *curves, "", *summary]), asked.out)


# --- running


def cold_start(task: str, seed: int, runs: Path) -> Path:
    """Return the checkpoint of a task's cold start; makes it if it is not there."""
    begun = []
    if after := TASKS[task].after:
        begun = [f"model.path={cold_start(after, seed, runs)}", "model.build=null"]
    return start(f"race_{task}", runs / f"{task}-{seed}/cold", seed, begun)


def run(heat: Heat, cold: Path, python_of_swift: str | None) -> dict[str, Result]:
    """Return what each trainer did; runs those that are not there."""
    begin = heat.folder / "start"
    if not begin.exists():
        write_rows(heat.settings, heat.folder / "rows")
        export = [sys.executable, "-m", "vlmrl", "export", str(cold), "--out", str(begin)]
        subprocess.run(export, check=True, cwd=ROOT)
    calls = commands(heat, python_of_swift)
    race(calls, heat.folder, heat.settings.run.steps, {"RACE_REWARDS": heat.rewards})
    return {name: result(heat, name) for name in calls}


def result(heat: Heat, name: str) -> Result:
    """Return a trainer's stamps, with the held-out values of its checkpoints, or its error."""
    folder, settings = heat.folder / name, heat.settings
    if (folder / FAULT).exists():
        return {"error": (folder / FAULT).read_text().strip()}
    curve = {0: value(heat, heat.folder / "start", "start")}
    every = settings.run.save_every
    for step in range(every, settings.run.steps + 1, every):
        curve[step] = value(heat, folder / "run" / TRAINERS[name][1].format(step), f"{name}-{step}")
    lines = (folder / STAMPS).read_text().splitlines()
    return {"stamps": [json.loads(line) for line in lines], "curve": curve}


def value(heat: Heat, model: Path, name: str) -> float:
    """Return the held-out value of a checkpoint; evaluates it if it was not."""
    folder = heat.folder / "evaluations" / name
    begun = [f"model.path={model}", "model.build=null", "sft=null", "run.steps=0"]
    settings = config.load(str(heat.file), [*begun, f"run.dir={folder}"])
    if not evaluations(folder):
        lifecycle.train(settings)
    assert settings.evaluation is not None
    return float(evaluations(folder)[0]["metrics"][settings.evaluation.metric])


def heading() -> str:
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers", "trl")]
    machine = f"{os.cpu_count()} shared CPU cores, one thread each, load {os.getloadavg()[2]:.1f}"
    about = f"{datetime.date.today()}, {machine}; {', '.join(versions)}"
    command = " ".join(["python performance/race.py", *sys.argv[1:]])
    return f"# A race to a held-out value\n\n{about}.\n\n`{command}`"


if __name__ == "__main__":
    main()
