"""Runs with everything that has state, killed at random moments."""

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

from helpers.hard import HARD, hard_rows
from helpers.proposing_engine import ENGINE as PROPOSING
from helpers.proposing_engine import SELF_PLAY
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.config import load

ENGINE = f"{Path(__file__).parent}/copy_engine.py:DrainedEngine"
LARGE = ("bomb_30000.png", "large_10000_1bit.png", "animated.gif")
CURRICULUM = [
    "data.train=[{name: easy, card: shapes, limit: 24}, "
    "{name: hard, card: shapes, split: 'train[50%:]', limit: 24}]",
    "data.sampler={name: adarft, lag: 1, options: {difficulty: index, target: 20, highest: 2000}}",
    "algorithm={name: dph, options: {dynamic_sampling_batches: 1}}",
    "strategies=[{name: rehearsal, options: {samples: 2, near_perfect: 0.5, correct_above: 0.4}}]",
    "stages=[{until: 0.5, rollout: {max_tokens: 3}}, {rollout: {max_tokens: 5}, optimizer: {lr: 1.0e-3}}]",
]
"""What a curriculum adds to a tiny run: a sampler that learns, stages, and rehearsed answers."""
WORLD = "{card: world, environment: grid_world, tools: [crop], instruct: false}"
ACTING = [f"data.train=[{WORLD}]", "rollout.turns={max_turns: 3}"]
"""What makes the rollouts of a tiny run call a tool and act in a world."""
TURNS = [
    f"data.train=[{{card: shapes, tools: [crop], instruct: false}}, {WORLD}]",
    "rollout.turns={max_turns: 3}",
    "run.rollouts_every=1",
    "rollout.max_staleness=2",
    f"engine.name={Path(__file__).parent}/asking_engine.py:AskingAhead",
]
"""What makes them do so ahead of the trainer."""
BEGIN_S = 180.0
"""Seconds in which a run must begin to write."""
WORK_S = 2.0
"""CPU seconds, about three steps, after which a run is killed at the latest: of a machine that has other
work, seconds would say little."""


def full_config(folder: Path) -> Any:
    """A run with an adapter, workers, rollouts ahead of the trainer, and rows that are left out."""
    rows = folder.with_name("rows.jsonl")
    if not rows.exists():
        names = [row["file"] for row in hard_rows("image") if row["file"] not in LARGE]
        lines = [
            {"id": name, "question": "What is it?", "answer": "it", "images": [str(HARD / name)]}
            for name in names
        ]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f"{{name: hostile, card: records, options: {{path: {rows}}}, weight: 2}}"
    return load(
        "quickstart",
        [
            *TINY,
            f"run.dir={folder}",
            "run.steps=10",
            "run.save_every=1",
            "resume=auto",
            "sft=null",
            "evaluation=null",
            "checks={media_ablation_every: 0, parity_every: 0}",
            "model.max_pixels=12544",
            "rollout.max_tokens=4",
            f"data.media_root={HARD}",
            f"data.train=[{source}, shapes]",
            "data.workers=1",
            "data.quarantine_limit=1",
            "data.max_prompt_tokens=100000",
            "model.lora={rank: 2}",
            "rollout.max_staleness=2",
            f"engine.name={ENGINE}",
        ],
    )


def curriculum_config(folder: Path) -> Any:
    """A run with a sampler that learns, stages, and rehearsed answers."""
    return _short_config(folder, CURRICULUM)


def self_play_config(folder: Path) -> Any:
    """A run that asks what it has proposed, some of it in earlier steps."""
    return _short_config(folder, [*SELF_PLAY, PROPOSING])


def _short_config(folder: Path, more: list[str]) -> Any:
    return load(
        "quickstart",
        [
            *TINY,
            f"run.dir={folder}",
            "run.steps=10",
            "run.save_every=1",
            "resume=auto",
            "sft=null",
            "evaluation=null",
            "checks={media_ablation_every: 0, parity_every: 0}",
            "rollout.max_tokens=4",
            *more,
        ],
    )


def turns_config(folder: Path) -> Any:
    """A run whose rollouts call a tool or act in a world, ahead of the trainer."""
    return _short_config(folder, TURNS)


def whisper_config(folder: Path) -> Any:
    """The shipped run with Whisper's frozen ears, its checkpoints closer together."""
    often = ["run.threads=1", "run.save_every=5", "run.report=false", "tracking.tensorboard=false"]
    return load("whisper_digits", [f"run.dir={folder}", "resume=auto", *often])


CONFIGS = {
    "whisper": whisper_config,
    "full": full_config,
    "curriculum": curriculum_config,
    "self_play": self_play_config,
    "turns": turns_config,
}


def train_fully(folder: Path, kind: str = "full") -> None:
    """Begin such a run, or go on with it, as a process does that has just begun."""
    lifecycle.train(CONFIGS[kind](folder))


def kill_repeatedly(folder: Path, kills: int, seed: int, kind: str = "full") -> int:
    """Begin or go on with a run `kills` times and kill it each time; return how many were hit.

    A run that comes to its end before it is killed begins anew, its folder kept as `folder.done`. Runs
    are forks of a process that only imports: all modules that the caller has, so that no time goes by
    with importing them again.
    """
    modules = [name for name in sys.modules if not is_of_tests(name)]
    order = json.dumps([str(folder), kills, seed, kind, modules])
    done = subprocess.run(
        # Not `-m`: workers of the runs import what `__main__` is.
        [sys.executable, "-c", "from helpers import kills; kills.answer_order()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=order,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    return int(done.stdout.splitlines()[-1])


def is_of_tests(module: str) -> bool:
    """Return whether a module is collected by pytest: it may refuse to be imported elsewhere."""
    return module.rpartition(".")[2].startswith(("test_", "conftest"))


def answer_order() -> None:
    """Do what the order on standard input says, and print how many runs were hit."""
    folder, kills, seed, kind, modules = json.loads(sys.stdin.read())
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert multiprocessing.active_children() == [] and threading.active_count() == 1
    print(_kill_forks(Path(folder), kills, seed, kind))


def _kill_forks(folder: Path, kills: int, seed: int, kind: str) -> int:
    chance, hits = random.Random(seed), 0
    context = multiprocessing.get_context("fork")
    while hits < kills:
        process = context.Process(target=_train_and_end, args=(folder, kind))
        process.start()
        _wait_for_life(folder, process)
        wait_for_work(process, chance.uniform(0.0, WORK_S))
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0), process.exitcode
        hits += process.exitcode != 0
        print(f"{time.strftime('%T')} {hits} killed", file=sys.stderr, flush=True)
        if (folder / "summary.json").exists() and hits < kills:
            shutil.rmtree(folder.with_name(f"{folder.name}.done"), ignore_errors=True)
            folder.rename(folder.with_name(f"{folder.name}.done"))
    return hits


def kill_behind(folder: Path, kind: str, file: str, lines: int) -> None:
    """Begin or go on with a run in a process of its own; kill it once its file has that many lines."""
    code = "import sys; from pathlib import Path; from helpers.kills import train_fully\n"
    code += "train_fully(Path(sys.argv[1]), sys.argv[2])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    path = folder / file
    with subprocess.Popen([sys.executable, "-c", code, folder, kind], env=environment) as process:
        while process.poll() is None and not (
            path.exists() and path.read_bytes().count(b"\n") >= lines
        ):
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL, process.returncode


def _train_and_end(folder: Path, kind: str) -> None:
    train_fully(folder, kind)
    os._exit(0)  # a fork skips what is registered `atexit`, and would wait for workers


def _wait_for_life(folder: Path, process: Any) -> None:
    """Until the process has begun to write, so that the kill hits work and not imports."""
    file = folder / "metrics.jsonl"
    before = file.stat().st_mtime_ns if file.exists() else 0
    end = time.monotonic() + BEGIN_S
    while time.monotonic() < end:
        now = file.stat().st_mtime_ns if file.exists() else 0
        if now != before or not process.is_alive():
            return
        time.sleep(0.02)
    raise AssertionError(f"the run did not begin within {BEGIN_S:g} s")


def wait_for_work(process: Any, seconds: float) -> None:
    """Until the process has had this much time of a CPU, or has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        seen = psutil.Process(process.pid)
        end = _cpu_s(seen) + seconds
        while process.is_alive() and _cpu_s(seen) < end:
            time.sleep(0.01)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
