"""Does every family learn? Twenty GRPO steps of a small model of each, one of them killed and resumed.

    python performance/family_runs.py --families qwen3_5 glm4v --out performance/results/family_runs.md

A small model with random weights imitates the quickstart's loose boxes until it sees something (the config
`quickstart`; a family without images hears the digits of `spoken_digits`), then come twenty GRPO steps, the
reward's mean over the first and the last five of them, and held-out greedy scores before and after. The
same steps run a second time: killed (SIGKILL) once twelve of them are logged, resumed from step 10, and held
against the first: bytes of the last checkpoint, rollouts, evaluations and metrics.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from learning import evaluations, start, tell
from tables import head

from helpers.runs import final_state, metric_lines, rows
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.system.files import read_json

STEPS, KILLED_AT = 20, 12
COLD = [
    "sft.batch_size=16",
    "sft.max_steps=250",
    "sft.validate_from=50",
    "sft.validate_every=25",
    "sft.validation_limit=48",
    "sft.decay_steps=10",
]
"""A cold start of minutes: half of the batch, and an earlier look at what is seen."""
SHORT = [
    f"run.steps={STEPS}",
    "run.save_every=10",
    "run.rollouts_every=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "rollout.prompts=8",
    f"evaluation.every={STEPS}",
    "evaluation.limit=100",
    "evaluation.samples=0",
]


def task_of(family: str) -> tuple[str, str]:
    """Return the config by which a family learns, and the metric of its evaluations."""
    if "image" in plugins.load("family", family).kinds:
        return "quickstart", "box_iou"
    return "spoken_digits", "exact"


def line_of(family: str, runs: Path) -> str:
    """Run a family's cold start and its two runs where they are not there; return its line of the table."""
    task, metric = task_of(family)
    stop = 0.3 if metric == "box_iou" else 0.2
    changes = [f"model.build={{family: {family}}}", *COLD, f"sft.stop_at={stop}"]
    cold = start(task, runs / f"{family}-cold", 0, changes)
    begun = [f"model.path={cold}", "model.build=null", "sft=null", "run.threads=1", *SHORT]
    whole, resumed = runs / f"{family}-whole", runs / f"{family}-resumed"
    lifecycle.train(load(task, [*begun, f"run.dir={whole}", "resume=auto"]))
    seconds = sum(read_json(whole / "summary.json")["cpu_seconds"].values()) / STEPS
    if not (resumed / "summary.json").exists():
        kill(task, resumed, begun)
        lifecycle.train(load(task, [*begun, f"run.dir={resumed}", "resume=auto"]))
    rewards = [line["reward/mean"] for line in metric_lines(whole) if "reward/mean" in line]
    curve = evaluations(whole)
    before, after = (curve[step]["metrics"][metric] for step in (0, STEPS))
    first, last = np.mean(rewards[:5]), np.mean(rewards[-5:])
    return (
        f"| `{family}` | {task} | {first:.3f} -> {last:.3f} | {before:.3f} -> {after:.3f} "
        f"| {seconds:.2f} | {differences(whole, resumed) or 'equal'} |"
    )


def kill(task: str, folder: Path, changes: list[str]) -> None:
    """Train in a process of its own, and kill it once enough steps are logged."""
    command = [sys.executable, "-m", "vlmrl", "train", task, *changes, f"run.dir={folder}"]
    log = folder / "metrics.jsonl"
    with subprocess.Popen([*command, "resume=auto"], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and (
            not log.exists() or log.read_bytes().count(b"\n") < KILLED_AT
        ):
            time.sleep(0.05)
        process.kill()


def differences(whole: Path, resumed: Path) -> str:
    """Return the names of what two runs do not have in common; empty: nothing."""
    pairs = {
        "checkpoint": (final_state(whole), final_state(resumed)),
        "rollouts and evaluations": (rows(whole), rows(resumed)),
        "metrics": (metric_lines(whole), metric_lines(resumed)),
    }
    return ", ".join(name for name, (one, other) in pairs.items() if one != other)


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    families = plugins.names("family")
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--runs", type=Path, default=Path("runs/families"))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table = head(
        "| family | task | reward, first and last five steps | held out, greedy | CPU s a step | resumed |"
    )
    for family in asked.families:
        table.append(line_of(family, asked.runs))
        tell("\n".join(table), asked.out)


if __name__ == "__main__":
    main()
