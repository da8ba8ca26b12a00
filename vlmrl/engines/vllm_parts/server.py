"""One vLLM server as the trainer sees it: a child process, or one that is running elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vlmrl.engines import serve
from vlmrl.engines.vllm_parts.requests import EngineFault
from vlmrl.errors import UserError
from vlmrl.system import distributed
from vlmrl.system.http_client import LOOK_S, NoReply, request

if TYPE_CHECKING:
    from vlmrl.engines.base import ServedPolicy

log = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds that a server has to end on request before it is killed."""

PROGRAM = ("-m", "vlmrl.engines.serve")
"""What Python runs as a server."""

HEALTH = "/health"


class RequestRefused(UserError):
    """The server refuses the request, and would refuse it again."""


class NoAnswer(EngineFault):
    """No answer came in time."""


class Fleet(Protocol):
    """Servers that others start, watch and start again, on any machine; their number may change."""

    token: str
    address: str
    """Where the servers reach this machine."""

    def launch(self, arguments: Mapping[str, object], files: Mapping[str, bytes]) -> None:
        """Start every server that does not run with these arguments and model files yet; do not wait.

        `arguments` are those of `vllm.LLM` but for the model; `files` are the model's, by name.
        """

    def look(self) -> tuple[list[str], int]:
        """Return the addresses of the servers that live, and how many are starting.

        Raises:
            UserError: none lives and none is starting.
        """

    def restart(self, url: str) -> None:
        """Start the server at this address again: it has failed."""

    def synced(self, urls: Sequence[str], version: int) -> None:
        """Note that these servers hold weights of this version."""


class Server:
    """One server: its calls, and its process if it is a child."""

    def __init__(self, url: str, token: str, sync_timeout_s: float) -> None:
        self.url, self.token, self._sync_timeout = url, token, sync_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self.ready = False
        """Whether it runs and holds the weights last sent; False from the first fault on."""
        self.life = 0
        """Number of times it was started: a fault of an earlier life says nothing about this one."""

    def __str__(self) -> str:
        code = (self._process.poll() if self._process else 0) or 0
        return f"server {self.url}" + (f" (killed by signal {-code})" if code < 0 else "")

    # ----------------------------------------------------------------------------------- process

    def launch(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        host: str = "127.0.0.1",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Start the child process on a free port; its log goes to `folder`, which dies with us."""
        self.stop()
        with socket.create_server((host, 0)) as listener:  # a port on which nobody listens now
            port = listener.getsockname()[1]
        self.url = f"http://{host}:{port}"
        address = ["--host", host, "--port", str(port)]
        own = {serve.TOKEN: self.token, serve.PARENT: str(os.getpid()), serve.FOLDER: str(folder)}
        own["TMPDIR"] = str(folder)  # vLLM leaves sockets and meeting points behind
        self._log = folder / f"server-{port}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *program, *address, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**distributed.outside(os.environ), **environment, **own},
                start_new_session=True,  # Ctrl-C is for the trainer; the server dies as one group
            )

    def wait_until_healthy(self, timeout: float) -> None:
        """Return when the server is ready to serve (EngineFault if it ends or takes too long)."""
        deadline = time.monotonic() + timeout
        while True:
            if self.ended:
                raise EngineFault(f"{self} ended while it started: {self.last_words()}")
            try:
                self.call("GET", HEALTH, None, 5.0, "start")
                return
            except EngineFault as fault:
                if time.monotonic() > deadline:
                    raise EngineFault(
                        f"start: {self} was not ready after {timeout:g} s (engine option "
                        f"start_timeout_s): {fault}"
                    ) from fault
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the child and every process it started; a server elsewhere is left running."""
        self.ready = False
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # killed below, with the rest
                process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError):  # no process of the group was left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def pid(self) -> int | None:
        """Process id of the child, and of its process group."""
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        """Whether the child has ended by itself; never of a server elsewhere."""
        return self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        """Return the last lines of the child's log, those that name an error first."""
        assert self._log is not None
        lines = self._log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line or "error" in line]
        return " | ".join((errors or lines)[-3:]) or "its log is empty"

    # ------------------------------------------------------------------------------------- calls

    def post(self, path: str, body: object, timeout: float, stage: str) -> Any:
        """Return the answer to a POST, as `call` does."""
        return self.call("POST", path, body, timeout, stage)

    def call(self, method: str, path: str, body: object, timeout: float, stage: str) -> Any:
        """Return the JSON that the server answers; None for an empty answer, text if it is not JSON.

        Raises:
            RequestRefused: status 4xx.
            EngineFault: no answer within `timeout` seconds, a broken answer, or status 5xx; the
                message names the stage.
        """
        look = None if path == HEALTH else self._require_life
        try:
            reply = request(method, self.url + path, body, self.token, timeout, look=look)
            status, text = reply.status, reply.data.decode()
        except NoReply as error:
            if error.late:
                raise NoAnswer(f"{stage}: {self} gave no answer in {timeout:g} s") from error
            raise EngineFault(f"{stage}: {self}, {path}: {error}") from error
        except UnicodeDecodeError as error:
            raise EngineFault(f"{stage}: {self}, {path}: {error!r}") from error
        if 400 <= status < 500:
            raise RequestRefused(f"{stage}: {self} refuses {path} ({status}): {text[:500]}")
        if status >= 500:
            raise EngineFault(f"{stage}: {self}, {path}: status {status}: {text[:500]}")
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text

    def _require_life(self) -> None:
        """Raise EngineFault if the server is dead: vLLM leaves calls to a dead engine open."""
        with contextlib.suppress(NoAnswer):  # busy, perhaps
            self.call("GET", HEALTH, None, LOOK_S, "health")

    def rpc(self, method: str, *args: Any, stage: str) -> Any:
        """Return what the first worker answers to a call of a method of `worker.Worker`."""
        body = {"method": method, "args": list(args)}
        return self.post("/collective_rpc", body, self._sync_timeout, stage)["results"][0]

    # ------------------------------------------------------------------------------------- weights

    def pause(self) -> None:
        """Freeze all requests and empty all caches."""
        self.sync("/pause?mode=keep&clear_cache=true")

    def resume(self, version: int) -> None:
        """Continue, with weights of this version."""
        self.sync("/update_weight_version", {"new_version": str(version)})
        self.sync("/resume")

    def sync(self, path: str, body: object = None) -> None:
        """Run one part of a weight update."""
        self.post(path, body, self._sync_timeout, "sync")

    def require_model(
        self, policy: ServedPolicy, length: int, backend: str, shortcuts: Mapping[str, object]
    ) -> None:
        """Refuse a server that cannot stand in for the policy's model.

        `length`: tokens of the longest prompt with its completion; `backend`: of the weight transfer;
        `shortcuts`: see `VllmOptions.shortcuts`.

        Raises:
            UserError: its model, its log-probs, its transfer, its length or its shortcuts differ.
        """
        config = policy.base.config
        text = config.get_text_config()
        description = self.rpc("describe", stage="start")
        expected = {
            "model_type": config.model_type,
            "hidden_size": text.hidden_size,
            "num_hidden_layers": text.num_hidden_layers,
            "vocab_size": text.vocab_size,
            "logprobs_mode": "raw_logprobs",
            "transfer": backend,
            **shortcuts,
        }
        for name, value in expected.items():
            if description[name] != value:
                raise UserError(f"{self}: expected {name} {value!r}, got {description[name]!r}")
        if description["max_model_len"] < length:
            raise UserError(
                f"{self}: expected max_model_len of at least {length}, got {description['max_model_len']}"
            )

    def require_folder(self, folder: str) -> None:
        """Refuse a server that cannot read this folder of media (UserError)."""
        access = self.rpc("look_at", folder, stage="start")
        if not access["here"]:
            raise UserError(
                f"{self}: engine option media_folder: there is no {folder} where it runs; name a folder "
                "on storage that it shares with this machine"
            )
        if not access["allowed"]:
            raise UserError(
                f"{self}: engine option media_folder: it may not read {folder}; start it with "
                "--allowed-local-media-path and the folder"
            )


def command_line(arguments: Mapping[str, object]) -> list[str]:
    """Return keyword arguments of `vllm.LLM` as command-line arguments of the server."""
    out: list[str] = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            out.append(flag if value else "--no-" + flag[2:])
        else:
            out += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return out


def ask_all(do: Callable[[Server], None], servers: Sequence[Server]) -> dict[Server, EngineFault]:
    """Do something with several servers at once; return the faults by server, each of which is logged."""
    faults: dict[Server, EngineFault] = {}

    def ask_one(server: Server) -> None:
        try:
            do(server)
        except EngineFault as fault:
            log.warning("%s", fault)
            faults[server] = fault

    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        list(pool.map(ask_one, servers))
    return {server: faults[server] for server in servers if server in faults}


def drop_requests(servers: Sequence[Server]) -> None:
    """Make all ready servers drop their requests; callers get those unfinished."""
    everything: dict[str, list[str]] = {"request_ids": []}
    ready = [server for server in servers if server.ready]
    ask_all(lambda server: server.post("/abort_requests", everything, 10.0, "abort"), ready)


def refresh(servers: Sequence[Server], fleet: Fleet, timeout: float) -> tuple[list[Server], int]:
    """Return the servers of a fleet that live, and how many are starting; those that failed start again.

    A server that was ready stays so; any other has to be given the weights first.
    """
    for server in servers:
        if server.life and not server.ready:
            fleet.restart(server.url)
    urls, starting = fleet.look()
    known = {server.url: server for server in servers if server.ready}
    return [known.get(url) or Server(url, fleet.token, timeout) for url in urls], starting


def in_turn(servers: Sequence[Server], rank: int) -> list[Server]:
    """Return the servers in the order in which a rank asks them: each rank begins with the next."""
    start = rank % max(1, len(servers))
    return [*servers[start:], *servers[:start]]
