"""A checkpoint in a process of its own: `vlmrl serve` on the loopback, for the process that asks it alone.

The asker's memory and random numbers are its own. The process is started when it is first asked, killed
when it does not answer in time, and started again by the next question. It ends with its owner, however
that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrl.config import NamedModel
from vlmrl.system import distributed
from vlmrl.system.chat_endpoint import Reply, Unavailable, chat
from vlmrl.system.launched.parent_watch import PARENT, TOKEN

__all__ = ["LoadedModel"]

START_S = 1800.0
"""Seconds within which a checkpoint must be loaded."""
LOOK_S = 0.1
"""Seconds between two looks at whether it is."""
MAX_STARTS = 3
"""Times in a row that a process may end before it has loaded its checkpoint."""
BATCH = 8
"""Most questions that it answers in one pass."""
ADDRESS = re.compile(r"^serving .* at (http://\S+)", re.MULTILINE)
"""What the server prints once its checkpoint is loaded."""


class LoadedModel:
    """The process of a checkpoint. Several threads may use it."""

    def __init__(self, model: NamedModel) -> None:
        self._model = model
        self._token = secrets.token_urlsafe()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._url = ""
        self._failed = 0  # starts in a row

    def start(self) -> None:
        """Return when the checkpoint is loaded; load it if no process has.

        Raises:
            Unavailable: it cannot be loaded; the message has the last lines that its process wrote.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._failed >= MAX_STARTS:
                raise Unavailable(self._last_words(), again=False)
            self._stop()
            self._folder = tempfile.TemporaryDirectory(prefix="vlmrl-model-")
            self._process = self._launch(Path(self._folder.name) / "log")
            try:
                self._url = self._wait(self._process)
            except Unavailable:
                # What never worked, such as a wrong path, does not work the next time.
                self._failed = self._failed + 1 if self._url else MAX_STARTS
                raise
            self._failed = 0

    def send(self, body: Mapping[str, Any], seconds: float) -> Reply:
        """Return the reply to a request; kill the process if it lets most of a question's time pass.

        Raises:
            Unavailable, Invalid: as `chat`.
        """
        process, begun = self._process, time.monotonic()
        try:
            return chat(self._url, {**body, "model": self._model.name}, self._token, seconds)
        except Unavailable:
            if process is not None and time.monotonic() - begun >= self._model.timeout_s / 2:
                _kill(process)
            raise

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _launch(self, log: Path) -> subprocess.Popen[bytes]:
        m = self._model
        given = ["--port", "0", "--name", m.name, "--engine", "hf", "--dtype", m.dtype]
        given += ["--batch", str(min(m.concurrency, BATCH))]
        environment = distributed.outside(os.environ)
        devices = _devices(m.devices, os.environ)
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        environment |= {TOKEN: self._token, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "vlmrl", "serve", m.path, *given],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the owner; the process dies as one group
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            ended = process.poll() is not None
            if found := ADDRESS.search(self._said()):
                return found[1]
            if ended:
                raise Unavailable(self._last_words(), again=False)
            time.sleep(LOOK_S)
        _kill(process)
        raise Unavailable(f"not loaded within {START_S:g} s: {self._last_words()}", again=False)

    def _said(self) -> str:
        if self._folder is None:
            return ""
        log = Path(self._folder.name) / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return f"its process ended: {' | '.join(lines[-2:]) or 'it wrote nothing'}"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _devices(chosen: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of a process of this rank; None: it sees what this one does."""
    visible, rank = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("LOCAL_RANK")
    if chosen is not None or rank is None:
        return visible if chosen is None else chosen
    if visible is None:
        return rank
    names = visible.split(",")
    return names[int(rank) % len(names)]
