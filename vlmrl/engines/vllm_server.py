"""Rollouts from vLLM in separate processes: one or several servers, on this machine or on others.

Servers are started as children (`serve.py`) on this machine's loopback address, or are already
running at `urls`. Prompts go to whichever server is free; the prompts of a server that is dead, hung
or wrong are requested again.

With several ranks the main one owns the servers and sends the weights; it tells the others where the
servers are at every sync. A fault within a step then ends the run: only the main rank could restart
a server, and it may be waiting for the others.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.engines import serve
from vlmrl.engines.base import ConcurrentEngine, Finished, Sampling, ServedPolicy
from vlmrl.engines.completions import make_completions
from vlmrl.engines.routed_experts import routers_of
from vlmrl.engines.vllm_parts.held_weights import HeldWeights
from vlmrl.engines.vllm_parts.job import Job, ask
from vlmrl.engines.vllm_parts.media_parts import KEPT, MediaFolder, make_shared
from vlmrl.engines.vllm_parts.options import (
    Weights,
    save_adapter,
    save_model_files,
    scratch,
)
from vlmrl.engines.vllm_parts.requests import EngineFault, check, end_run, sampling_fields
from vlmrl.engines.vllm_parts.server import Server, ask_all, drop_requests, in_turn, launch
from vlmrl.engines.vllm_parts.server_options import ServerOptions
from vlmrl.engines.vllm_parts.transfer import transfer
from vlmrl.engines.vllm_parts.vllm_import import require_vllm
from vlmrl.engines.vllm_parts.vllm_model import ADAPTER
from vlmrl.errors import UserError
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system import distributed

log = logging.getLogger(__name__)


@dataclass
class VllmServer(ServerOptions, ConcurrentEngine):
    """vLLM servers, started by the run or already running. More options: see `ServerOptions`."""

    placed: ClassVar[bool] = True
    routes: ClassVar[bool] = True
    every_rank: ClassVar[bool] = True
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
    _jobs: list[Job] = field(default_factory=list, init=False, repr=False)
    _begun: int = field(default=0, init=False, repr=False)

    def start(self, policy: ServedPolicy) -> None:
        """Start the servers, or connect to them, and send them the policy's weights.

        Raises:
            UserError: vLLM is not installed, or a server does not start or serves another model.
        """
        self.check(policy)
        if not self.urls and distributed.machines_differ():
            raise UserError(
                "engine vllm_server: the servers that a run starts listen on its own machine only, and "
                "this run has processes on others; start servers yourself and set engine option urls"
            )
        if self.transfer == "ipc" and distributed.world() > 1:
            raise UserError(
                "engine option transfer: ipc works in one process only; use 'file' or 'tcp'"
            )
        if distributed.is_main():
            self._prepare(policy.weight_bytes())
        self.sync(policy)

    def _prepare(self, size: int) -> None:
        """Prepare the transfer and the list of servers; `size` is that of the weights, in bytes."""
        if self.urls:
            token = os.environ.get(serve.TOKEN, "")
            if not token:
                raise UserError(f"engine option urls: set {serve.TOKEN} to the servers' token")
        else:
            require_vllm()
            token = secrets.token_urlsafe(32)
        atexit.register(self.close)
        self._folder = scratch(size + KEPT)
        folder = Path(self._folder.name)
        self._shared = make_shared(self.media_folder if self.urls else folder)
        held = self._held = HeldWeights(folder)
        self._transfer = transfer(self.transfer, held, self.transfer_address, self.sync_timeout_s)
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

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Return groups of `sampling.n` completions, in the prompts' order; each also to `finished`.

        The draw depends on `sampling.seed` and each prompt's place in the batch, not on the server.
        Several calls may run at a time, with one temperature.

        Raises:
            UserError: a prompt does not fit, is refused, reaches the server in other tokens than the
                trainer's, or was lost more than `max_restarts` times.
        """
        assert self._servers, "engine.start was not called"
        for prompt in batch.prompts:
            self.require_room(self._policy, prompt, sampling.max_tokens)
        with self._lock:  # not in the middle of an update
            routers = routers_of(self._policy)
            job = Job(batch.prompts, sampling, self._version, self._begun, routers)
            self._begun += 1
            self._jobs.append(job)
        try:
            self._set_temperature(sampling.temperature)
            while job.open:
                self._bring_up()
                self._round(job, finished)
            if job.error is not None:
                raise job.error
        finally:
            self._jobs.remove(job)
        groups = tuple(job.groups[number] for number in range(len(batch)))
        return Rollouts(batch, groups, version=job.version)

    def abort(self) -> None:
        """Make every running call of `generate` raise soon."""
        jobs = list(self._jobs)
        for job in jobs:
            job.fail(UserError("generation was aborted"))
        if jobs:
            drop_requests(self._servers)

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

    def _deliver(self, policy: ServedPolicy, whole: bool, adapter: Weights) -> None:
        if adapter:
            save_adapter(policy, adapter, self._adapter)
        if whole:
            self._held.replace(self.units(policy))
        self._version = policy.version
        ready = [server for server in self._servers if server.ready]
        self._update(ready, whole)
        self._bring_up()

    @property
    def _adapter(self) -> Path:
        """Where servers read the adapter."""
        return Path(self._folder.name) / ADAPTER

    def _join(self, version: int) -> None:
        """Let all ranks use the main one's servers, which hold weights of this version."""
        own = [(server.url, server.token) for server in self._servers]
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
        """Start servers until each one runs and holds the last weights.

        Raises:
            UserError: a server is still down after `max_restarts` more tries.
        """
        with self._lock:
            for _ in range(self.max_restarts + 1):
                down = [server for server in self._servers if not server.ready]
                if not down:
                    return
                faults = self._restart(down)
            if faults:
                fault = next(iter(faults.values()))
                raise UserError(f"gave up after {self.max_restarts + 1} tries: {fault}")

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
        given = self.arguments(self._policy, str(model))
        given["weight_transfer_config"] = {"backend": self._transfer.backend}
        given["allowed_local_media_path"] = self._shared.name
        if self.api_processes > 1:
            given["api_server_count"] = self.api_processes
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
            if faults and distributed.world() > 1:
                raise end_run(next(iter(faults.values())))

    def _warm(self, server: Server) -> None:
        server.ready = False
        server.rpc("set_temperature", self._temperature, stage="generation")
        server.ready = True

    def _round(self, job: Job, finished: Finished | None) -> None:
        """Send prompts to the ready servers until none waits, or no server is ready."""
        job.deadline = time.monotonic() + self.generate_timeout_s
        # Every rank and job begins with another server: a few prompts from each use all of them.
        servers = [s for s in in_turn(self._servers, distributed.rank() + job.number) if s.ready]
        if not servers:  # they are receiving new weights: `_bring_up` waits for that
            return
        width = job.width(self.max_num_seqs)
        with ThreadPoolExecutor(width * len(servers)) as pool:
            try:
                list(pool.map(lambda server: self._work(server, job, finished), servers * width))
            except BaseException:
                self._give_up(job, UserError("interrupted"))
                raise

    def _work(self, server: Server, job: Job, finished: Finished | None) -> None:
        while server.ready and (number := job.take()) is not None:
            prompt, life = job.prompts[number], server.life
            fields = sampling_fields(self._policy, job.sampling, number)
            try:
                adapter = self.lora == "adapter"
                answer = ask(server, prompt, fields, job, self._media, adapter)
                if job.sampling.greedy:
                    answer = answer.repeated(job.sampling.n)
                check(prompt, answer, self._policy, job.sampling, (job.version, self._newest))
                (job.groups[number],) = make_completions(self._policy, [prompt], [answer.group])
                if finished is not None:
                    finished(number, job.groups[number])
            except EngineFault as fault:
                if job.error is not None:
                    return  # the job was aborted
                if server.life == life:  # else it was restarted since, for another job
                    server.ready = False
                if distributed.world() > 1:
                    self._give_up(job, end_run(fault))
                    return
                log.warning("requested again: %s", fault)
                job.lost(number, fault, self.max_restarts)
            except UserError as error:
                self._give_up(job, error)

    @property
    def _newest(self) -> int:
        """The version that a server may have: other ranks learn of an update when it is over."""
        return self._version + (not distributed.is_main())

    def _give_up(self, job: Job, error: UserError) -> None:
        job.fail(error)
        if self._jobs == [job]:  # servers can only drop all requests at once
            drop_requests(self._servers)
