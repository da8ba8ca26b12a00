"""Runs that are begun, stopped and resumed from a page: each is `vlmrl train` in a session of its own.

Beside the run folder `runs/mine` are `runs/mine.log`, what its commands printed, and `runs/.mine.started`,
the last of them and its process. So a run goes on when the page or its server ends, and another server
finds it again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from vlmrl import config
from vlmrl.errors import UserError
from vlmrl.runs import run_lock
from vlmrl.system.files import read_json, write_json, writing
from vlmrl.system.processes import PARENT

TAIL = 4000
"""Bytes of the end of a log that are shown."""


@dataclass(frozen=True)
class StartedRun:
    """The last command of a run, and its process: `started` are seconds since 1970, as psutil says them."""

    arguments: list[str]
    """What follows `vlmrl train`: the config, and overrides."""
    pid: int
    started: float

    @property
    def command(self) -> str:
        """Return the command as one types it."""
        return command_text("train", *self.arguments)

    @property
    def resuming(self) -> list[str]:
        """Return the arguments that continue the run."""
        kept = [
            text for text in self.arguments if not text.startswith(("resume=", "resume.start="))
        ]
        return [*kept, "resume=auto"]

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs; another one may have its number by now."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            return process.create_time() == self.started and process.status() != "zombie"
        return False


class StartedRuns:
    """The runs of a folder as a page begins and ends them, one request at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: set[int] = set()
        self._turn = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all runs that were begun from a page, the last one first."""
        records = sorted(
            self.runs.glob(".*.started"), key=lambda f: f.stat().st_mtime, reverse=True
        )
        return [record.name[1:].removesuffix(".started") for record in records]

    def get(self, name: str) -> StartedRun | None:
        """Return the last command of a run, None if no page began it.

        Raises:
            UserError: its record is damaged.
        """
        path = self._record(name)
        if not path.is_file():
            return None
        tree = read_json(path)
        try:
            return StartedRun(list(tree["arguments"]), int(tree["pid"]), float(tree["started"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: expected arguments, pid and started: {tree}") from error

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a run that this server began and that has ended, else None."""
        child = self._children.get(name)
        return child.poll() if child else None

    def log(self, name: str) -> str:
        """Return the end of what the run's commands printed."""
        path = self.runs / f"{name}.log"
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().decode("utf-8", "replace")

    def process_of(self, name: str) -> int | None:
        """Return the process of this machine that trains a run, None if there is none to stop from here.

        A run that was begun in a terminal has one, too; one of `vlmrl launch` is stopped where it was begun.
        """
        owner = run_lock.living_owner(self.runs / name)
        if owner is not None:
            return owner.pid if owner.host == socket.gethostname() and not owner.attempt else None
        started = self.get(name)
        return started.pid if started and started.is_alive else None

    def is_stopping(self, name: str) -> bool:
        """Return whether the process of a run was asked to stop from here."""
        return self.process_of(name) in self._stopped

    def start(self, name: str, overrides: Sequence[str]) -> str:
        """Begin a run of a config; return the run's name.

        Raises:
            UserError: the config has a mistake, its folder is not among the runs of the page, or another
                process trains in it.
        """
        folder = config.load(name, overrides).folder
        if folder.absolute().parent != self.runs.absolute():
            raise UserError(
                f"run.dir: expected a folder in {self.runs}, which this page shows, got {folder}; "
                f"write run.dir={self.runs / folder.name}"
            )
        with self._turn:
            self._begin(folder.name, [name, *overrides])
        return folder.name

    def resume(self, name: str) -> str:
        """Go on with a run that was begun from a page; return its name.

        Raises:
            UserError: no page began it, or it runs.
        """
        with self._turn:
            started = self.get(name)
            if started is None:
                raise UserError(f"run {name!r}: no page began it: continue it where it was begun")
            self._begin(name, started.resuming)
        return name

    def stop(self, name: str) -> str:
        """Send a run what Ctrl-C sends, once: it finishes its step and saves; return its name.

        Raises:
            UserError: no process of this machine trains it.
        """
        with self._turn:
            process = self.process_of(name)
            if process is None:
                raise UserError(f"run {name!r}: no process to stop on this machine")
            if process not in self._stopped:  # the second signal would end it without saving
                self._stopped.add(process)
                os.kill(process, signal.SIGINT)
        return name

    def _begin(self, name: str, arguments: list[str]) -> None:
        log, started = self.runs / f"{name}.log", self.get(name)
        holder: object = run_lock.living_owner(self.runs / name)
        if holder is None and started and started.is_alive:
            holder = f"process {started.pid}, which is starting"
        if holder is not None:
            raise UserError(f"{self.runs / name}: another run is writing to this folder ({holder})")
        with writing(log), log.open("ab") as file:
            moment = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"\n# {moment}\n$ {command_text('train', *arguments)}\n".encode())
            file.flush()
            child = subprocess.Popen(
                vlmrl_command("train", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if key != PARENT},
                start_new_session=True,
            )
        self._children[name] = child
        begun = StartedRun(arguments, child.pid, psutil.Process(child.pid).create_time())
        write_json(self._record(name), asdict(begun))

    def _record(self, name: str) -> Path:
        return self.runs / f".{name}.started"


def vlmrl_command(*arguments: str) -> list[str]:
    """Return what runs a command of this installation."""
    return [sys.executable, "-m", "vlmrl", *arguments]


def command_text(*arguments: str) -> str:
    """Return a command as one types it in a terminal."""
    return shlex.join(["vlmrl", *arguments])
