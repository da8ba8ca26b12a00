"""Whole trainings by `vlmrl train` and `race.py`: what a step takes with each way to generate.

The models are small, so what is measured is that the ways work on a card, and what they cost beside the
model; a dry run checks each config, and trains a step where the engine is installed and can run here.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from race_arms.commands import Heat, commands

from gpu_day.day import Day
from gpu_day.device import ON_GPU
from gpu_day.report import Row
from vlmrl.assemble.validate import load_valid

ROOT = Path(__file__).resolve().parents[2]
BASE = ("sft=null", "evaluation=null", "run.report=false", "tracking={tensorboard: false}")
TINY = ("run.steps=1", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_tokens=4")
BF16 = "model.dtype=bfloat16"
AHEAD = "rollout.max_staleness=1"


@dataclass(frozen=True)
class Training:
    """A training of the quickstart's task by its overrides."""

    name: str
    overrides: Sequence[str]
    on_cpu: bool = True
    """Whether a CPU can run it, too."""


TRAININGS = (
    Training("engine hf", (BF16,)),
    Training("vllm", (BF16, "engine={name: vllm}")),
    Training(
        "vllm, weights in 8 bits",
        (BF16, "engine={name: vllm, options: {quantization: fp8}}"),
        on_cpu=False,
    ),
    Training(
        "vllm, cache in 8 bits", (BF16, "engine={name: vllm, options: {kv_cache_dtype: fp8}}")
    ),
    Training(
        "vllm, 4 tokens guessed", (BF16, "engine={name: vllm, options: {speculative_tokens: 4}}")
    ),
    Training("server, batches ahead", (BF16, "engine=vllm_server", AHEAD)),
    Training(
        "server, groups as they finish",
        (BF16, "engine=vllm_server", AHEAD, "rollout.streaming=true"),
    ),
)


def trainings(day: Day) -> Iterator[Row]:
    """Train the quickstart's task in every way for some steps, from random weights."""
    for training in TRAININGS:
        sizes = TINY if day.tiny else ("run.steps=12",)
        with tempfile.TemporaryDirectory() as folder:
            overrides = [*BASE, *sizes, *training.overrides, f"run.dir={folder}/run"]
            load_valid("quickstart", overrides)
            if why := hindrance(training):
                yield {"training": training.name, "s a step": f"config is valid; not run: {why}"}
                continue
            run_command(["-m", "vlmrl", "train", "quickstart", *overrides])
            yield {"training": training.name, **steps_of(Path(folder) / "run/metrics.jsonl")}


def hindrance(training: Training) -> str:
    """Say why a training cannot run here; empty if it can."""
    if training.name != "engine hf" and find_spec("vllm") is None:
        return "vllm is not installed"
    return "" if ON_GPU or training.on_cpu else "it needs a GPU"


def steps_of(metrics: Path) -> Row:
    """Return the median seconds of the steps and of their largest phases, the first apart: it warms up."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    lines = lines[1:] or lines
    phases = ("time/generate", "time/update", "time/sync")
    medians = {key: statistics.median(line.get(key, 0.0) for line in lines) for key in phases}
    whole = statistics.median(
        sum(value for key, value in line.items() if key.startswith("time/")) for line in lines
    )
    gap = statistics.median(line.get("rollout/logprob_gap", 0.0) for line in lines)
    seconds = {f"{key.removeprefix('time/')} s": f"{value:.3g}" for key, value in medians.items()}
    return {"s a step": f"{whole:.3g}", **seconds, "mean |Δ log-prob|": f"{gap:.2g}"}


def race(day: Day) -> Iterator[Row]:
    """Race with TRL in bfloat16 on this card, to the value that both reach; a dry run builds the commands."""
    if day.tiny:
        file = ROOT / "performance/configs/race_shapes.yaml"
        load_valid(str(file), [BF16])
        for name, command in commands(Heat(file, Path("runs"), [BF16], 128), None).items():
            yield {"trainer": name, "command": " ".join(command)}
        return
    with tempfile.TemporaryDirectory() as folder:
        options = ["--tasks", "shapes", "--seeds", "0", "--runs", folder, "--dtype", "bfloat16"]
        for line in run_command(["performance/race.py", *options]).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| shapes |") and len(cells) == 2 + len(RACE):
                yield dict(zip(RACE, cells[2:], strict=True))


RACE = ("trainer", "value", "at step", "CPU s a step", "CPU s", "wall s", "peak MiB")
"""Columns of `race.py` after task and seed; peaks are those of the host."""


def run_command(arguments: Sequence[str]) -> str:
    """Run Python in the root of the repository; return what it prints, or raise with its last words."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        last = " ".join(done.stderr.split())[-300:]
        raise RuntimeError(f"{' '.join(arguments)}: exit status {done.returncode}: {last}")
    return done.stdout
