"""The named models of this process: all that name one share its limits, its memory and its counts."""

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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl.config import NamedModel
from vlmrl.named_models.asked import AskedModel, AskLimits, in_folder
from vlmrl.system import distributed
from vlmrl.system.chat_endpoint import Reply, Unavailable, chat
from vlmrl.system.processes import PARENT, TOKEN

# --------------------------------------------------------------------------------------------------
# A checkpoint in a process of its own: `vlmrl serve` on the loopback, for the process that asks it alone.
#
# The asker's memory and random numbers are its own. The process is started when it is first asked, killed
# when it does not answer in time, and started again by the next question. It ends with its owner, however
# that ends.


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
        options = ["--port", "0", "--name", m.name, "--engine", "hf", "--dtype", m.dtype]
        options += ["--batch", str(min(m.concurrency, BATCH))]
        environment = distributed.outside(os.environ)
        devices = _devices(m.devices, os.environ)
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        environment |= {TOKEN: self._token, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "vlmrl", "serve", m.path, *options],
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
            if address := ADDRESS.search(self._said()):
                return address[1]
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


# --------------------------------------------------------------------------------------------------
# The named models of this process: all that name one share its limits and its counts.


class _Opened:
    """The models by definition, and the folder in which their replies are kept (None: memory)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.models: dict[str, tuple[NamedModel, AskedModel]] = {}
        self.loaded: list[LoadedModel] = []
        self.folder: Path | None = None

    def open(self, model: NamedModel) -> AskedModel:
        """Make the model of a definition; a checkpoint is loaded when it is first asked."""
        replies = in_folder(self.folder, model.name)
        limits = AskLimits(
            model.concurrency, model.timeout_s, model.attempts, model.max_requests_per_step
        )
        if model.url:
            return AskedModel([model.url, model.model], _sender(model), limits, replies)
        loaded = LoadedModel(model)
        self.loaded.append(loaded)
        identity = [model.path, model.dtype]
        return AskedModel(identity, loaded.send, limits, replies, loaded.start)

    def close(self) -> None:
        with self.lock:
            for _, asked in self.models.values():
                asked.replies.close()
            for loaded in self.loaded:
                loaded.close()
            self.models, self.loaded = {}, []


_OPENED = _Opened()


def open_model(model: NamedModel) -> AskedModel:
    """Return the model of a definition: the same object for the same definition."""
    key = model.model_dump_json()
    with _OPENED.lock:
        if key not in _OPENED.models:
            _OPENED.models[key] = model, _OPENED.open(model)
        return _OPENED.models[key][1]


@contextlib.contextmanager
def keeping_replies(folder: Path) -> Iterator[None]:
    """Keep the replies of all named models in a folder while the context lasts, and recall those there."""
    _OPENED.close()
    _OPENED.folder = folder
    try:
        yield
    finally:
        _OPENED.close()
        _OPENED.folder = None


def take_metrics() -> dict[str, float]:
    """Return the numbers of a step, by model, over all ranks, and begin the next step's budgets.

    All ranks call it.
    """
    with _OPENED.lock:
        taken = [(model.name, asked.take_counts()) for model, asked in _OPENED.models.values()]
    counts: dict[str, Counter[str]] = {}
    for share in distributed.gather(taken):
        for name, counted in share:
            counts.setdefault(name, Counter()).update(counted)
    return {key: n for name in sorted(counts) for key, n in _metrics(name, counts[name]).items()}


def _metrics(name: str, counts: Mapping[str, int]) -> dict[str, float]:
    asked, answered = counts["asked"], counts["answered"]
    metrics = {
        f"model/{name}/questions": float(asked),
        f"model/{name}/requests": float(counts["requests"]),
        f"model/{name}/prompt_tokens": float(counts["prompt_tokens"]),
        f"model/{name}/completion_tokens": float(counts["completion_tokens"]),
    }
    if asked:
        metrics[f"model/{name}/known"] = counts["known"] / asked
        metrics[f"model/{name}/failed"] = counts["failed"] / asked
    if answered:
        metrics[f"model/{name}/seconds"] = counts["microseconds"] / 1e6 / answered
    return metrics


def _sender(model: NamedModel) -> Any:
    def send(body: Mapping[str, Any], seconds: float) -> Reply:
        return chat(
            model.url, {"model": model.model, **body}, os.environ.get(model.key_env), seconds
        )

    return send
