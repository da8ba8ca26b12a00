"""Trainers run against each other, step by step in turns; what each took is measured from outside.

CPU seconds are those of a trainer's process and all that it started. So is the memory: the sum of what
each of these processes had at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from race_arms.clock import ADDRESS

ROOT = Path(__file__).parents[2]
STAMPS, FAULT = "stamps.jsonl", "error.txt"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'performance'}:{ROOT / 'performance/race_arms'}",
}


@dataclass
class Runner:
    """A trainer in the race, and where what it prints and takes is written."""

    folder: Path
    process: psutil.Popen
    turns: socket.socket

    def next(self) -> int:
        """Return the step that it says is done; BrokenPipeError: it has ended."""
        line = self.turns.recv(64)
        if not line:
            raise BrokenPipeError
        return int(line)

    def cpu(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(sum(times[:4]) for times in self._each(psutil.Process.cpu_times))

    def peak(self) -> float:
        """The most MiB that its processes had, each at its own time."""
        texts = self._each(lambda process: Path(f"/proc/{process.pid}/status").read_text())
        return sum(int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024 for text in texts)  # type: ignore[index]

    def _each(self, ask):  # type: ignore[no-untyped-def]
        found = []
        for process in [self.process, *self.process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                found.append(ask(process))
        return found


def race(
    commands: Mapping[str, Sequence[str]], folder: Path, steps: int, environment: Mapping[str, str]
) -> None:
    """Run the commands that have not finished in the folder; write `stamps.jsonl` or `error.txt` of each."""
    left = {arm: command for arm, command in commands.items() if not finished(folder / arm)}
    runners = {}
    for arm, command in left.items():
        if runner := _start(command, folder / arm, environment):
            runners[arm] = runner
    stamps: dict[str, list[dict[str, float]]] = {arm: [] for arm in runners}
    for step in range(1, steps + 1):
        for arm, runner in [*runners.items()]:
            try:
                stamps[arm].append(_turn(runner, step))
            except OSError:  # it has ended
                _note_fault(runner.folder, runners.pop(arm).process)
        print(f"{folder.name}: {step} of {steps} steps", flush=True)
    for arm, runner in runners.items():
        with runner.turns, contextlib.suppress(OSError):
            runner.turns.sendall(b".")
        if runner.process.wait() == 0:
            lines = map(json.dumps, stamps[arm])
            (runner.folder / STAMPS).write_text("\n".join(lines) + "\n")
        else:
            _note_fault(runner.folder, runner.process)


def finished(folder: Path) -> bool:
    return (folder / STAMPS).exists() or (folder / FAULT).exists()


def _start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Runner | None:
    """Start a trainer; return it when it is about to make its first step, None if it fails before."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{name}/clock")
        listener.listen(1)
        listener.settimeout(1)
        env = {**os.environ, **ENVIRONMENT, **environment, ADDRESS: f"{name}/clock"}
        with (folder / "log.txt").open("w") as log:
            process = psutil.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            with contextlib.suppress(TimeoutError):
                turns, _ = listener.accept()
                turns.settimeout(None)
                runner = Runner(folder, process, turns)
                with contextlib.suppress(OSError):
                    runner.next()
                    return runner
    _note_fault(folder, process)
    return None


def _turn(runner: Runner, step: int) -> dict[str, float]:
    cpu, wall = runner.cpu(), time.monotonic()
    runner.turns.sendall(b".")
    done = runner.next()
    assert done == step, f"{runner.folder}: expected step {step}, got {done}"
    seconds = {"cpu": runner.cpu() - cpu, "wall": time.monotonic() - wall}
    return {"step": step, **seconds, "peak": runner.peak()}


def _note_fault(folder: Path, process: psutil.Popen) -> None:
    """Keep the last line of a trainer that names an error, or else its last."""
    process.wait()
    lines = [line.strip() for line in (folder / "log.txt").read_text().splitlines()]
    errors = [line for line in lines if re.match(r"[\w.: ]*(Error|Exception)\b", line)]
    (folder / FAULT).write_text((errors or lines or ["it printed nothing"])[-1] + "\n")
