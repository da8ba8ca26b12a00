"""Runs on two ranks under torchrun's agent, one of whose ranks is killed at a random moment."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from helpers.kills import is_of_tests, wait_for_work
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import LostRank

LORA = ["model.lora={rank: 2}"]
EVALUATED = ["sft.max_steps=2", "evaluation.every=3", "evaluation.limit=4"]
PLAIN = ["sft=null", "evaluation=null"]
KINDS = {
    "ddp": ["distributed.strategy=ddp", *EVALUATED],
    "ddp, adapter": ["distributed.strategy=ddp", *PLAIN, *LORA],
    "fsdp2": ["distributed.strategy=fsdp2", *PLAIN],
    "fsdp2, adapter": ["distributed.strategy=fsdp2", *EVALUATED, *LORA],
}
"""What is trained, and how it is split."""
WORK_S = 5.0
"""CPU seconds of a rank, from the start of its process on, after which it is killed at the latest: of a
machine that has other work, seconds would say little."""
END_S = 120.0
"""Seconds in which the others must end; torchrun gives them 30, and a rank waits 1800 for another."""


def train_rank(folder: str, kind: str) -> None:
    """Begin a run on this rank, or go on with it, and write down an error that ends it."""
    target, rank = Path(folder), os.environ["RANK"]
    _beside(target, f"{rank}.pid").write_text(str(os.getpid()))
    more = [f"run.dir={target}", *TINY, *KINDS[kind], "run.steps=8", "run.save_every=1"]
    more += ["run.rollouts_every=1", "rollout.max_tokens=4", "resume=auto"]
    more += ["checks={media_ablation_every: 0, parity_every: 0}"]
    try:
        lifecycle.train(load("quickstart", more))
    except LostRank as error:
        _beside(target, f"{rank}.said").write_text(str(error))
        os._exit(1)


def _beside(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}.{name}")


def run(folder: Path, kind: str, kills: int, seed: int = 0) -> list[dict[str, Any]]:
    """Train on two ranks to the end, after `kills` runs one of whose ranks was killed.

    Return of each kill which rank was hit, how many steps were done, how the other one ended, what it
    said, and after how many seconds all had ended. A run that comes to its end before it is hit begins
    anew, its folder kept as `folder.done`. Ranks are forks of a process that only imports: all modules
    that the caller has.
    """
    modules = [name for name in sys.modules if not is_of_tests(name)]
    done = subprocess.run(
        [sys.executable, "-c", "from helpers import rank_kills; rank_kills.answer_order()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=json.dumps([str(folder), kind, kills, seed, modules]),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


def answer_order() -> None:
    """Do what the order on standard input says, and print what came of the kills."""
    folder, kind, kills, seed, modules = json.loads(sys.stdin.read())
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert multiprocessing.active_children() == [] and threading.active_count() == 1
    found, chance = [], random.Random(seed)
    while len(found) < kills:
        hit = _kill_one(Path(folder), kind, chance.randrange(2), chance.uniform(0.0, WORK_S))
        if hit is not None:
            found.append(hit)
            print(f"{time.strftime('%T')} {len(found)}: {hit}", file=sys.stderr, flush=True)
        if Path(folder, "summary.json").exists() and len(found) < kills:
            aside = Path(f"{folder}.done")
            shutil.rmtree(aside, ignore_errors=True)
            Path(folder).rename(aside)
    agent = _begin(Path(folder), kind)
    agent.join()
    assert agent.exitcode == 0
    print(json.dumps(found))


def _begin(folder: Path, kind: str) -> Any:
    """Start torchrun's agent, and through it both ranks."""
    folder.parent.mkdir(exist_ok=True)
    for path in folder.parent.glob(f"{folder.name}.[01].*"):
        path.unlink()
    context = multiprocessing.get_context("fork")
    agent = context.Process(target=_be_agent, args=(str(folder), kind))
    agent.start()
    return agent


def _be_agent(folder: str, kind: str) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings = LaunchConfig(
        *(1, 1, 2),
        run_id="kills",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    with open(_beside(Path(folder), "log"), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            elastic_launch(settings, train_rank)(folder, kind)
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)


def _kill_one(folder: Path, kind: str, victim: int, seconds: float) -> dict[str, Any] | None:
    """Begin or go on with a run and kill a rank after so much work; None if the run ended before."""
    agent = _begin(folder, kind)
    pids = [_wait_for_pid(_beside(folder, f"{rank}.pid"), agent) for rank in range(2)]
    with contextlib.suppress(psutil.NoSuchProcess):
        wait_for_work(_Alive(pids[victim]), seconds)
    steps = _count_steps(folder)
    before = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[victim], signal.SIGKILL)
    agent.join(END_S)
    assert not agent.is_alive(), "the other rank waits"
    if agent.exitcode == 0:
        return None
    assert not any(psutil.pid_exists(pid) for pid in pids)
    said = _beside(folder, f"{1 - victim}.said")
    return {
        "rank": victim,
        "work": round(seconds, 2),
        "steps": steps,
        "seconds": round(time.monotonic() - before, 1),
        "said": said.read_text() if said.exists() else "",
        "pid": pids[victim],
    }


class _Alive:
    """A process that is no child of this one, as `wait_for_work` looks at it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        return psutil.pid_exists(self.pid)


def _wait_for_pid(path: Path, agent: Any) -> int:
    end = time.monotonic() + END_S
    while time.monotonic() < end and agent.is_alive():
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def _count_steps(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
