"""The servers of engine `vllm_server`: which there are, how they start, and how weights reach them.

They are children of the run (`serve.py`), servers that are already running at `urls`, or a fleet that
`vlmrl launch` keeps. Those of a fleet come and go; whoever lives joins at a sync. What has not got the
last weights is not `ready`, and is asked nothing.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl.engines import serve
from vlmrl.engines.base import ConcurrentEngine, ServedPolicy
from vlmrl.engines.vllm_parts.held_weights import HeldWeights
from vlmrl.engines.vllm_parts.media_parts import KEPT, MediaFolder, make_shared
from vlmrl.engines.vllm_parts.options import (
    Weights,
    model_files,
    save_adapter,
    save_model_files,
    scratch,
)
from vlmrl.engines.vllm_parts.requests import EngineFault, end_run
from vlmrl.engines.vllm_parts.server import Fleet, Server, ask_all, refresh
from vlmrl.engines.vllm_parts.server_options import ServerOptions, launch
from vlmrl.engines.vllm_parts.transfer import transfer
from vlmrl.engines.vllm_parts.vllm_import import require_vllm
from vlmrl.engines.vllm_parts.vllm_model import ADAPTER
from vlmrl.errors import UserError
from vlmrl.system import distributed

__all__ = ["ServerLifecycle"]


@dataclass
class ServerLifecycle(ServerOptions, ConcurrentEngine):
    """Base of the engine: servers that hold the weights of the last sync."""

    fleet: Fleet | None = field(default=None, init=False, repr=False)
    """Servers that `vlmrl launch` keeps; set before `start`."""
    _policy: Any = field(default=None, init=False, repr=False)
    _servers: list[Server] = field(default_factory=list, init=False, repr=False)
    _transfer: Any = field(default=None, init=False, repr=False)
    _held: Any = field(default=None, init=False, repr=False)
    _folder: Any = field(default=None, init=False, repr=False)
    _shared: Any = field(default=None, init=False, repr=False)
    _media: MediaFolder | None = field(default=None, init=False, repr=False)
    _version: int = field(default=-1, init=False, repr=False)
    _temperature: float = field(default=1.0, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    def start(self, policy: ServedPolicy) -> None:
        """Start the servers, or connect to them, and send them the policy's weights.

        Raises:
            UserError: vLLM is not installed, or a server does not start or serves another model.
        """
        self.check(policy)
        if self.fleet is not None:
            self.require_fleet()
        elif not self.urls and distributed.machines_differ():
            raise UserError(
                "engine vllm_server: the servers that a run starts listen on its own machine only, and "
                "this run has processes on others; start servers yourself and set engine option urls"
            )
        if self.transfer == "ipc" and distributed.world() > 1:
            raise UserError(
                "engine option transfer: ipc works in one process only; use 'file' or 'tcp'"
            )
        if distributed.is_main():
            self._prepare(policy)
        self.sync(policy)

    def _prepare(self, policy: ServedPolicy) -> None:
        """Prepare the transfer and the list of servers; those of a fleet begin to start."""
        if self.fleet is not None:
            token = self.fleet.token
        elif self.urls:
            token = os.environ.get(serve.TOKEN, "")
            if not token:
                raise UserError(f"engine option urls: set {serve.TOKEN} to the servers' token")
        else:
            require_vllm()
            token = secrets.token_urlsafe(32)
        atexit.register(self.close)
        self._folder = scratch(policy.weight_bytes() + KEPT)
        folder = Path(self._folder.name)
        self._shared = make_shared(self.media_folder if self.urls or self.fleet else folder)
        held = self._held = HeldWeights(folder)
        address = self.fleet.address if self.fleet else self.transfer_address
        self._transfer = transfer(self.transfer, held, address, self.sync_timeout_s)
        if self.fleet is not None:
            given = self.server_arguments(policy, "", self._transfer.backend)
            self.fleet.launch(given, model_files(policy, folder / "model"))
            return
        urls = self.urls or ["not started"] * (len(self.devices) or self.num_servers)
        self._servers = [Server(url, token, self.sync_timeout_s) for url in urls]

    def sync(self, policy: ServedPolicy) -> None:
        """Send all servers the policy's weights; generation is paused meanwhile.

        All ranks call it, and return when the servers have the weights. All are gathered before any is
        sent, so that no rank waits for a server while others wait for it in the gathering.

        Raises:
            UserError: a server does not take them, even after restarts.
        """
        with self._lock:
            self._policy = policy
            whole = self.lacks_weights(first=self._version < 0)
            adapter = policy.training_state() if self.lora == "adapter" else {}
            if distributed.is_main():
                self._deliver(policy, whole, adapter)
            elif whole:
                policy.take_part(**self.form(policy))
            self._join(policy.version)

    def close(self) -> None:
        """Stop all servers that the run started, and remove the files."""
        atexit.unregister(self.close)
        servers, self._servers = self._servers, []
        for server in servers:
            server.stop()
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        self._media = None
        for folder in (self._shared, self._folder):
            if folder is not None:
                folder.cleanup()
        self._shared = self._folder = None
        self._policy = None

    def memory(self, policy: ServedPolicy, capacity: int) -> tuple[int, int]:
        """As in `VllmOptions`; servers elsewhere, or on `devices` of their own, take nothing here."""
        stays, generating = super().memory(policy, capacity)
        here = 0 if self.urls or self.devices or self.fleet else self.num_servers
        return here * stays, here * generating

    def _deliver(self, policy: ServedPolicy, whole: bool, adapter: Weights) -> None:
        if adapter:
            save_adapter(policy, adapter, self._adapter)
        if whole:
            self._held.replace(self.units(policy))
        first, self._version = self._version < 0, policy.version
        if self.fleet is not None:  # who is gone is not waited for
            self._servers, _ = refresh(self._servers, self.fleet, self.sync_timeout_s)
        ready = [server for server in self._servers if server.ready]
        self._update(ready, whole)
        if self.fleet is None:
            self._bring_up()
        else:
            self._take_in(self.fleet, wait=first)

    @property
    def _adapter(self) -> Path:
        """Where servers read the adapter."""
        return Path(self._folder.name) / ADAPTER

    def _join(self, version: int) -> None:
        """Let all ranks use the main one's servers, which hold weights of this version."""
        own = [(server.url, server.token) for server in self._servers if server.ready]
        found, shared = distributed.from_main((own, self._shared and self._shared.name))
        if self._media is None and shared is not None:
            self._media = MediaFolder(Path(shared) / f"rank-{distributed.rank()}")
        if distributed.is_main():
            return
        self._version = version
        self._servers = [Server(url, token, self.sync_timeout_s) for url, token in found]
        for server in self._servers:
            server.ready = True

    def _bring_up(self) -> None:
        """Start servers until each one runs and holds the last weights; of a fleet one is enough.

        Raises:
            UserError: a server is still down after `max_restarts` more tries.
            LostEngine: none of a fleet is left, with several ranks.
        """
        with self._lock:
            if self.fleet is not None:
                if not any(server.ready for server in self._servers):
                    if not distributed.is_main():
                        raise end_run(EngineFault("no server is left"))
                    self._take_in(self.fleet)
                return
            for _ in range(self.max_restarts + 1):
                down = [server for server in self._servers if not server.ready]
                if not down:
                    return
                faults = self._restart(down)
            if faults:
                fault = next(iter(faults.values()))
                raise UserError(f"gave up after {self.max_restarts + 1} tries: {fault}")

    def _take_in(self, fleet: Fleet, wait: bool = False) -> None:
        """Give weights to the servers of a fleet that lack them, until one is ready.

        `wait` also for those that are starting; else they join at a later sync.

        Raises:
            UserError: none is ready within `start_timeout_s`.
        """
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            self._servers, starting = refresh(self._servers, fleet, self.sync_timeout_s)
            if new := [server for server in self._servers if not server.ready]:
                faults = ask_all(self._begin, new)
                self._update([server for server in new if server not in faults])
            ready = [server.url for server in self._servers if server.ready]
            late = time.monotonic() > deadline
            if ready and (late or not (wait and starting)):
                break
            if late:
                raise UserError(
                    f"cluster.serve: no server was ready after {self.start_timeout_s:g} s (engine option "
                    "start_timeout_s)"
                )
            time.sleep(0.5)
        fleet.synced(ready, self._version)

    def _restart(self, down: Sequence[Server]) -> dict[Server, EngineFault]:
        """Start servers and give them the weights: together at first, each alone once one has failed."""
        if not self.urls:
            self._launch(down)
        faults = ask_all(self._begin, down)
        begun = [server for server in down if server not in faults]
        new = all(server.life == 1 for server in self._servers)
        for group in [begun] if new else [[server] for server in begun]:
            faults |= self._update(group)
        return faults

    def _launch(self, down: Sequence[Server]) -> None:
        folder = Path(self._folder.name)
        model = folder / "model"  # it stays: vLLM reads it again when the first video comes
        save_model_files(self._policy, str(model))
        given = self.server_arguments(self._policy, str(model), self._transfer.backend)
        given["allowed_local_media_path"] = self._shared.name
        if self.lora == "adapter":
            given["lora_modules"] = f"{ADAPTER}={self._adapter}"
        devices = dict(zip(self._servers, self.devices, strict=False))
        for server in down:
            launch(server, given, self.transfer, devices.get(server), folder)

    def _begin(self, server: Server) -> None:
        """Bring a server from launched, or from any state if it runs elsewhere, to where it takes weights."""
        server.life += 1
        server.wait_until_healthy(self.start_timeout_s)
        length = self.length_limit(self._policy)
        server.require_model(self._policy, length, self._transfer.backend)
        if self._shared is not None:
            server.require_folder(self._shared.name)
        server.rpc("abandon_update", stage="start")
        self._transfer.open(server)
        server.rpc("set_temperature", self._temperature, stage="start")

    def _update(self, servers: Sequence[Server], whole: bool = True) -> dict[Server, EngineFault]:
        """Give servers the weights (`whole`) and the adapter; return the faults by server."""
        for server in servers:
            server.ready = False
        faults = ask_all(Server.pause, servers)
        if whole:
            faults |= self._transfer.send([server for server in servers if server not in faults])
        return faults | ask_all(self._resume, [s for s in servers if s not in faults])

    def _resume(self, server: Server) -> None:
        if self.lora == "adapter":
            server.rpc("take_adapter", str(self._adapter), stage="sync")
        server.resume(self._version)
        server.ready = True

    def _set_temperature(self, temperature: float) -> None:
        with self._lock:
            # Another rank may have set another one since.
            if temperature == self._temperature and distributed.world() == 1:
                return
            self._temperature = temperature
            # A server that does not take it counts as broken, and gets it when it is restarted.
            faults = ask_all(self._warm, [server for server in self._servers if server.ready])
            if faults and distributed.world() > 1 and self.fleet is None:
                raise end_run(next(iter(faults.values())))

    def _warm(self, server: Server) -> None:
        server.ready = False
        server.rpc("set_temperature", self._temperature, stage="generation")
        server.ready = True
