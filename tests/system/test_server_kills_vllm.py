"""A vLLM server is killed at random moments while two ranks train: the run ends with the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from helpers import scores
from helpers.runs import final_values, metric_lines, rows

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

ROOT = Path(__file__).parents[2]
OPTIONS = "enforce_eager: true, max_model_len: 512, block_size: 32, kv_cache_gib: 0.125"
SERVED = f"engine={{name: vllm_server, options: {{{OPTIONS}}}}}"
LORA = "model.lora={rank: 4, alpha: 8}"
KINDS = {
    "ddp": ["distributed.strategy=ddp"],
    "ddp, adapter": ["distributed.strategy=ddp", LORA, "engine.options.lora=adapter"],
    "fsdp2": ["distributed.strategy=fsdp2"],
    "fsdp2, merged": ["distributed.strategy=fsdp2", LORA],
}
STEPS = 24
RUN = [
    "run.threads=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft=null",
    f"run.steps={STEPS}",
    "run.save_every=1",
    "run.rollouts_every=1",
    "resume=auto",
    "rollout.prompts=4",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
    "optimizer.warmup_steps=0",
    "evaluation=null",
    "checks={media_ablation_every: 0, parity_every: 0}",
    f"rewards=[{scores.__file__}:varied]",
]
KILLS = max(1, int(os.environ.get("VLMRL_KILLS", "12")) // len(KINDS))
START_S, STEPS_S = 10.0, 3.0
"""CPU seconds, of a server that starts and of all processes that train, in which a kill comes: of a
machine that has other work, seconds would say little."""
END_S = 120.0
"""Seconds in which everything must have ended after a kill that ends the run."""


def begin(folder: Path, kind: str) -> psutil.Popen:
    """Begin a run on two ranks, or go on with it; its words are added to `folder`.log."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node=2", "-m", "vlmrl", "train", "quickstart"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with Path(f"{folder}.log").open("a") as log:
        return psutil.Popen(
            [*command, f"run.dir={folder}", *RUN, SERVED, *KINDS[kind]],
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def count_steps(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def family_of(process: psutil.Popen) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def server_of(process: psutil.Popen) -> psutil.Process | None:
    for child in family_of(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "vlmrl.engines.serve" in child.cmdline():
                return child
    return None


def cpu_s(processes: list[psutil.Process]) -> float:
    found = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system
    return found


def wait_for_moment(folder: Path, process: psutil.Popen, chance: random.Random) -> bool:
    """Wait for a moment of a server's start, or of the steps; return whether the run goes on until then."""
    starting = chance.random() < 0.25
    before, amount = count_steps(folder), chance.uniform(0, START_S if starting else STEPS_S)
    while process.poll() is None:
        if starting and (server := server_of(process)) is not None and cpu_s([server]) >= amount:
            return True
        if not starting and count_steps(folder) > before:
            family = family_of(process)
            end = cpu_s(family) + amount
            while process.poll() is None and cpu_s(family) < end:
                time.sleep(0.01)
            return process.poll() is None
        time.sleep(0.05)
    return False


def train_and_kill(folder: Path, kind: str, kills: int, seed: int) -> Counter[str]:
    """Train to the end while servers are killed; return how often the run went on, or ended and said why.

    A run that comes to its end before all kills begins anew, its folder kept as `folder.done`.
    """
    chance, found = random.Random(seed), Counter[str]()
    process = begin(folder, kind)
    try:
        while True:
            hit = found.total() < kills and wait_for_moment(folder, process, chance)
            outcome = ""
            if hit and (server := server_of(process)) is not None:
                outcome = kill(folder, process, server)
                found[outcome] += 1
                print(time.strftime("%T"), kind, dict(found), file=sys.stderr, flush=True)
            if process.poll() is None and found.total() < kills:
                continue
            failed = process.wait() != 0
            assert failed == (outcome == "ended"), Path(f"{folder}.log").read_text()[-9000:]
            if not failed and found.total() == kills:
                return found
            if not failed:
                shutil.rmtree(f"{folder}.done", ignore_errors=True)
                folder.rename(f"{folder}.done")
            process = begin(folder, kind)
    finally:
        for one in [*family_of(process), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def kill(folder: Path, process: psutil.Popen, server: psutil.Process) -> str:
    """Kill a server, and return whether the run went on or ended; then it has said why."""
    family, log = family_of(process), Path(f"{folder}.log")
    before, enough = len(log.read_text()), min(STEPS, count_steps(folder) + 2)
    with contextlib.suppress(psutil.NoSuchProcess):
        server.kill()
    while process.poll() is None and count_steps(folder) < enough:
        time.sleep(0.05)
    if process.poll() in (None, 0):
        return "went on"
    require_reason(log.read_text()[before:])
    assert not psutil.wait_procs(family, timeout=END_S)[1]
    return "ended"


def require_reason(said: str) -> None:
    """A line names the server and says what to do."""
    lines = re.findall(r"^failed: LostEngine: (.*)$", said, re.MULTILINE)
    assert any("server http" in line and "with resume=auto" in line for line in lines), said


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_whose_server_is_killed_at_random_moments_end_with_the_same_bytes(kind, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    train_and_kill(whole, kind, 0, 0)
    found = train_and_kill(folder, kind, KILLS, seed=list(KINDS).index(kind))
    print(f"{kind}: {dict(found)}")
    for run in (folder, folder.with_name("run.done")):
        if run.exists():
            assert metric_lines(run) == metric_lines(whole)
            assert rows(run) == rows(whole)
            assert final_values(run) == final_values(whole)
