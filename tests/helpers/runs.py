"""Runs of a few tiny steps, and what they leave in their folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import safetensors.numpy

from vlmrl.policy import checkpoint

ROOT = Path(__file__).parents[2]
SLICES = "trainer/optimizer/"
TINY = [
    "run.threads=1",
    "run.steps=5",
    "run.save_every=2",
    "run.keep_checkpoints=2",
    "run.rollouts_every=2",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft.max_steps=4",
    "sft.batch_size=4",
    "sft.stop_at=null",
    "sft.decay_steps=1",
    "rollout.prompts=4",
    "rollout.group_size=3",
    "rollout.max_tokens=6",
    "evaluation.every=2",
    "evaluation.limit=6",
    # By the quickstart's own rewards so short a run earns nothing and learns nothing.
    f"rewards=[{Path(__file__).parent / 'scores.py'}:varied]",
    "evaluation.metric=varied",
]


CLOCKS = ("time/", "ranks/", "machine/")
"""How the names of metrics begin that no two runs have in common."""


def final_state(folder: Path) -> dict[str, bytes]:
    last = checkpoint.latest(folder)
    assert last is not None
    state = json.loads((last / "trainer/state.json").read_text())
    del state["extra"]["seconds"]
    return {
        **{
            p.relative_to(last).as_posix(): p.read_bytes()
            for ending in ("safetensors", "pt")
            for p in last.rglob(f"*.{ending}")
        },
        "state": json.dumps(state).encode(),
    }


def final_values(folder: Path) -> dict[str, Any]:
    """The bytes of the last checkpoint; of an optimizer's slices only their values.

    Which rank writes a number that all have (the step), and in which order a file lists its tensors, differs
    from run to run.
    """
    found: dict[str, Any] = {k: v for k, v in final_state(folder).items() if SLICES not in k}
    last = checkpoint.latest(folder)
    assert last is not None
    for path in (last / SLICES).glob("*.safetensors"):
        for name, value in safetensors.numpy.load_file(path).items():
            found[name if value.ndim == 0 else f"{path.name} {name}"] = value.tobytes()
    return found


def rows(folder: Path) -> list[Any]:
    """What was asked, said and paid in every step, and in every evaluation."""
    files = sorted(folder.glob("rollouts/*.jsonl")) + sorted(folder.glob("evals/*.jsonl"))
    return [
        (str(file.relative_to(folder)), json.loads(line))
        for file in files
        for line in file.read_text().splitlines()
    ]


def metric_lines(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in x.items() if not k.startswith(CLOCKS)} for x in lines]


def torchrun(
    *arguments: str, processes: int = 2, cwd: Path = ROOT, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` on several ranks of this machine; `timeout` is in seconds."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(processes), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        command, env=environment, cwd=cwd, timeout=timeout, capture_output=True, text=True
    )
