"""Two ranks lose their machine with its disk, and go on from the mirror of the run as if they had not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.runs import ROOT, TINY, final_values, metric_lines, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
BEGIN_S = 240.0
"""Seconds in which a checkpoint must be in the store, on a machine with other work."""


def arguments(folder: Path, *more: str) -> list[str]:
    few = ["evaluation=null", "sft.max_steps=2", "run.save_every=1", "run.steps=8"]
    checks = "checks={media_ablation_every: 0, parity_every: 0}"
    return ["-m", "vlmrl", "train", "quickstart", *TINY, *few, checks, f"run.dir={folder}", *more]


def train(folder: Path, *more: str) -> str:
    done = torchrun(*arguments(folder, *more))
    assert done.returncode == 0, done.stderr
    return done.stderr


def lose(folder: Path, store: Path, *more: str) -> None:
    """Kill both ranks once the second checkpoint is in the store, and remove their folder."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    agent = subprocess.Popen(
        [*launcher, *arguments(folder, *more)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + BEGIN_S
        while not list(store.rglob("step-2.*.json")):
            assert agent.poll() is None and time.monotonic() < end
            time.sleep(0.02)
    finally:
        family = [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]
        for process in family:
            process.kill()
        agent.wait()
        psutil.wait_procs(family, timeout=60)
    assert not (folder / "summary.json").exists()
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_go_on_elsewhere_to_the_same_bytes(strategy: str, tmp_path: Path) -> None:
    sharded = f"distributed.strategy={strategy}"
    undisturbed, store = tmp_path / "undisturbed/run", tmp_path / "store"
    train(undisturbed, sharded)
    more = [sharded, f"run.mirror=file://{store}"]
    lose(tmp_path / "lost/run", store, *more)
    fresh = tmp_path / "fresh/run"
    said = train(fresh, *more, "resume=auto")
    assert "going on from step-" in said and "of the mirror file://" in said
    assert metric_lines(fresh) == metric_lines(undisturbed)
    assert [line["step"] for line in metric_lines(fresh)] == list(range(1, 9))
    assert final_values(fresh) == final_values(undisturbed)
    kept = {path.name for path in (fresh / "checkpoints").iterdir()}
    assert "step-8" in kept and len(kept) == 2
    assert train(tmp_path / "again/run", *more, "resume=auto").count("of the mirror file://") == 1
