"""Servers of rollouts on other machines: each has a keeper, which starts it and starts it again.

A keeper knows one of four states. STARTING: the process runs, but does not answer yet. STALE: it answers,
with no weights or those of an earlier sync, so it gets no prompt. READY: it has the weights of the last
sync. DEAD: it ended too often. A new trainer finds the servers of the last one STALE, and running.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.engines.vllm_parts.server import PROGRAM, Server, command_line
from vlmrl.errors import UserError, import_extra
from vlmrl.features.launch.ray_host import own_address
from vlmrl.system import processes
from vlmrl.system.http_client import LOOK_S

WATCH_S = 0.5
"""Seconds between two looks of a keeper at its server."""
MAX_RESTARTS = 3
"""Times in a row that a server is started again without getting weights in between."""
PLACE_S = 600.0
"""Seconds within which some keeper must have found a place."""
ANSWER_S = 10.0
"""Seconds within which a keeper answers; one that does not is left out, with its node."""

INCIDENTAL = {"_name_or_path", "dtype", "is_local", "local_files_only", "name_or_path"}
"""Keys that transformers adds to a model's files where it loads them; servers are told the dtype by an
argument."""

log = logging.getLogger("vlmrl")


class ServerState(enum.Enum):
    """What a server is good for; see the module."""

    STARTING = "starting"
    STALE = "stale"
    READY = "ready"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Status:
    """A server as its keeper sees it."""

    state: ServerState = ServerState.STARTING
    model: str = ""
    """Digest of what it was told to serve; empty: nothing yet."""
    url: str = ""
    version: int = -1
    """Version of the weights of a READY one."""
    words: str = ""
    """Why it is DEAD."""


def digest_of(arguments: Mapping[str, object], files: Mapping[str, bytes]) -> str:
    """Return what stands for a model and its arguments; the same after it was saved and loaded."""

    def essential(keys: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in keys.items() if key not in INCIDENTAL}

    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode())
    for name, content in sorted(files.items()):
        if name.endswith(".json"):
            tree = json.loads(content, object_hook=essential)
            content = json.dumps(tree, sort_keys=True).encode()
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return digest.hexdigest()


# ------------------------------------------------------------------------------- on the other machine


class ServerKeeper:
    """Owner of one server process, which ends with it. Its methods return at once."""

    def __init__(
        self, token: str, host: str, gpus: int = 0, program: Sequence[str] = PROGRAM
    ) -> None:
        """Keep a server that listens at `host` and runs on `gpus` GPUs, those that this process sees."""
        self._token = token
        self._server = Server("", token, sync_timeout_s=LOOK_S)
        self._host, self._gpus, self._program = host, gpus, tuple(program)
        self._folder = tempfile.TemporaryDirectory(prefix="vlmrl-server-")
        self._asked: tuple[Mapping[str, Any], Mapping[str, bytes]] = {}, {}
        self._status = Status()
        self._due = self._over = False
        self._restarts = 0
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def token(self) -> str:
        """Return the secret of the server."""
        return self._token

    def status(self) -> Status:
        """Return the state of the server."""
        return self._status

    def pid(self) -> int | None:
        """Return the process id of the server, and of its process group."""
        return self._server.pid

    def launch(self, arguments: Mapping[str, object], files: Mapping[str, bytes]) -> None:
        """Start the server with these arguments and model files; one that runs with them becomes STALE."""
        model = digest_of(arguments, files)
        with self._lock:
            running = self._status.state in (ServerState.STALE, ServerState.READY)
            self._restarts = 0
            if running and self._status.model == model:
                self._status = Status(ServerState.STALE, model, self._status.url)
            elif self._status != Status(ServerState.STARTING, model):
                self._asked, self._due = (arguments, files), True
                self._status = Status(ServerState.STARTING, model)

    def restart(self, url: str) -> None:
        """Start the server again, if it is still the one at this address."""
        with self._lock:
            if self._status.url == url:
                self._begin_again(f"{url} failed")

    def synced(self, url: str, version: int) -> None:
        """Note that the server at this address has the weights of this version."""
        with self._lock:
            if self._status.url == url:
                self._restarts = 0
                self._status = Status(ServerState.READY, self._status.model, url, version)

    def close(self) -> None:
        """End the server and the keeper's thread."""
        self._over = True
        self._watcher.join()
        self._server.stop()
        self._folder.cleanup()

    def _begin_again(self, why: str) -> None:
        self._restarts += 1
        dead = self._restarts > MAX_RESTARTS
        log.warning("%s: %s", "given up" if dead else "started again", why)
        self._due = not dead
        state = ServerState.DEAD if dead else ServerState.STARTING
        self._status = Status(state, self._status.model, words=why if dead else "")

    def _watch(self) -> None:
        """Start what is due, and see what becomes of the server; this thread alone touches its process."""
        while not self._over:
            with self._lock:
                due, self._due, asked, before = self._due, False, self._asked, self._status
            if due:
                self._start(*asked)
            elif before.state is not ServerState.DEAD:
                self._look(before)
            time.sleep(WATCH_S)

    def _look(self, before: Status) -> None:
        if self._server.ended:
            with self._lock:
                if self._status is before:
                    self._begin_again(f"{self._server} ended: {self._server.last_words()}")
        elif before.state is ServerState.STARTING and self._server.pid is not None:
            try:
                self._server.call("GET", "/health", None, LOOK_S, "start")
            except EngineFault:
                return
            with self._lock:
                if self._status is before:
                    self._status = Status(ServerState.STALE, before.model, self._server.url)

    def _start(self, arguments: Mapping[str, object], files: Mapping[str, bytes]) -> None:
        self._server.stop()
        folder = Path(self._folder.name)
        model = folder / "model"  # it stays: vLLM reads it again when the first video comes
        model.mkdir(exist_ok=True)
        for name, content in files.items():
            (model / Path(name).name).write_bytes(content)
        own: dict[str, Any] = {"model": str(model)}
        if self._gpus > 1:
            own["tensor_parallel_size"] = self._gpus
        self._server.launch(
            command_line({**arguments, **own}), {}, folder, self._host, self._program
        )


# ---------------------------------------------------------------------------------------- in the driver


def start_keepers(
    count: int, gpus: int, namespace: str, program: Sequence[str] = PROGRAM
) -> list[Any]:
    """Ask Ray for keepers of servers on `gpus` GPUs each; they end with this process, a driver of Ray.

    Returns at once: a keeper that finds no room now starts when a node with room joins.
    """
    ray = import_extra("ray", "ray")
    token = secrets.token_urlsafe(32)
    options = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": -1, "scheduling_strategy": "SPREAD"}
    return [
        ray.remote(_PlacedKeeper)
        .options(name=f"server-{number}", namespace=namespace, **options)
        .remote(token, gpus, tuple(program))
        for number in range(count)
    ]


class _PlacedKeeper(ServerKeeper):
    """A keeper whose server listens at the address by which Ray knows its node."""

    def __init__(self, token: str, gpus: int, program: Sequence[str]) -> None:
        super().__init__(token, own_address(), gpus, program)
        processes.end_with(os.getppid())  # the node's raylet


# -------------------------------------------------------------------------------------------- in a rank


Ask = Callable[..., Any]
"""Calls a method of a keeper, by name, with arguments; None if the keeper does not answer."""


def fleet_of(count: int, namespace: str) -> KeptServers:
    """Return the servers of the `count` keepers that were started in this namespace.

    Raises:
        UserError: none of them answers.
    """
    ray = import_extra("ray", "ray")
    keepers = [_asker(ray, ray.get_actor(f"server-{number}", namespace)) for number in range(count)]
    deadline = time.monotonic() + PLACE_S
    while time.monotonic() < deadline:
        for keeper in keepers:
            if (token := keeper("token")) is not None:
                return KeptServers(keepers, token, own_address())
        time.sleep(WATCH_S)
    raise UserError(
        f"cluster.serve: no node had room for a server within {PLACE_S:g} s: see cluster.serve.gpus"
    )


def _asker(ray: Any, keeper: Any) -> Ask:
    last: list[Any] = []

    def ask(method: str, *arguments: Any) -> Any:
        if last and not ray.wait(last, timeout=0)[0]:
            return None  # it has not answered since, or has no place yet
        last[:] = [getattr(keeper, method).remote(*arguments)]
        try:
            return ray.get(last[0], timeout=ANSWER_S)
        except ray.exceptions.RayError:
            return None

    return ask


class KeptServers:
    """The servers of several keepers: what engine `vllm_server` calls a fleet."""

    def __init__(self, keepers: Sequence[Ask], token: str, address: str) -> None:
        """Use these keepers, whichever of them live; servers reach this machine at `address`."""
        self.token, self.address = token, address
        self._keepers = list(keepers)
        self._model: tuple[Mapping[str, Any], Mapping[str, bytes]] = {}, {}
        self._digest = ""

    def launch(self, arguments: Mapping[str, object], files: Mapping[str, bytes]) -> None:
        """See `Fleet`."""
        self._model, self._digest = (arguments, files), digest_of(arguments, files)
        for keeper in self._keepers:
            keeper("launch", arguments, files)

    def look(self) -> tuple[list[str], int]:
        """See `Fleet`. A keeper that is new, since its node was lost, is told what to serve."""
        statuses = [keeper("status") for keeper in self._keepers]
        for keeper, status in zip(self._keepers, statuses, strict=True):
            if status is not None and status.model != self._digest:
                keeper("launch", *self._model)
        own = [s for s in statuses if s is not None and s.model == self._digest]
        urls = [s.url for s in own if s.state in (ServerState.STALE, ServerState.READY)]
        dead = [s for s in own if s.state is ServerState.DEAD]
        starting = len(statuses) - len(urls) - len(dead)
        if not urls and not starting:
            raise UserError(f"cluster.serve: every server was given up: {dead[0].words}")
        return urls, starting

    def restart(self, url: str) -> None:
        """See `Fleet`."""
        for keeper in self._keepers:
            keeper("restart", url)

    def synced(self, urls: Sequence[str], version: int) -> None:
        """See `Fleet`."""
        for url in urls:
            for keeper in self._keepers:
                keeper("synced", url, version)
