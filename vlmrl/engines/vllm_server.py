"""Rollouts from vLLM in separate processes: one or several servers, on this machine or on others.

The servers are children of the run (`serve.py`), servers that are already running at `urls`, or a fleet that
`vlmrl launch` keeps. Those of a fleet come and go; whoever lives joins at a sync. A server that lacks the
last weights is not `ready`, and is asked nothing. Prompts go to whichever server is free; the prompts of a
server that is dead, hung or wrong are requested again.

With several ranks the main one owns the servers and sends the weights; it tells the others where the
servers are at every sync. A fault within a step then ends the run, unless another server of a fleet is
left: only the main rank could restart a server, and it may be waiting for the others.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmrl.engines import serve
from vlmrl.engines.base import ConcurrentRunningEngine, Engine, Finished, Sampling, ServedPolicy
from vlmrl.engines.completions import make_completions
from vlmrl.engines.routed_experts import routers_of
from vlmrl.engines.vllm_parts.adapted_vllm import ADAPTER, require_vllm
from vlmrl.engines.vllm_parts.job import Job, ask
from vlmrl.engines.vllm_parts.options import (
    VllmOptions,
    Weights,
    model_files,
    save_adapter,
    save_model_files,
    scratch,
)
from vlmrl.engines.vllm_parts.requests import (
    KEPT,
    EngineFault,
    MediaFolder,
    check,
    end_run,
    make_shared,
    sampling_fields,
)
from vlmrl.engines.vllm_parts.server import (
    Fleet,
    Server,
    ask_all,
    command_line,
    drop_requests,
    in_turn,
    refresh,
)
from vlmrl.engines.vllm_parts.transfer import HeldWeights, Name, build_transfer
from vlmrl.errors import LostEngine, UserError
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system import distributed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VllmServer(VllmOptions):
    """vLLM servers, started by the run or already running. More options: see `VllmOptions`."""

    num_servers: int = 1
    """Number of servers to start."""
    devices: list[str] = field(default_factory=list)
    """CUDA_VISIBLE_DEVICES of each server, one entry per server, e.g. ["1", "2,3"]. A server with
    several devices uses tensor parallelism."""
    urls: list[str] = field(default_factory=list)
    """Servers that are already running (`python -m vlmrl.engines.serve`), instead of starting any. Their
    token is read from VLMRL_SERVER_TOKEN."""
    transfer: Name = "file"
    """How weights are sent. file: the servers are on this machine."""
    transfer_address: str = "127.0.0.1"
    """Address at which servers reach this machine (tcp, nccl)."""
    media_folder: str | None = None
    """Folder on storage that the `urls` read too (start them with `--allowed-local-media-path`): media are
    written there once and requests name them. Absent: each request holds its media. Servers that the run
    starts have such a folder by themselves."""
    api_processes: int = 1
    """Processes of each server that is started which read requests and prepare media."""
    start_timeout_s: float = 600.0
    """Seconds within which a server must be ready."""
    sync_timeout_s: float = 300.0
    """Seconds for each part of a weight update."""

    capabilities = replace(VllmOptions.capabilities, concurrent=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.urls and (self.devices or self.num_servers != 1):
            raise ValueError("give either urls, or servers or devices to start")
        if self.devices and self.num_servers not in (1, len(self.devices)):
            raise ValueError(
                f"num_servers is {self.num_servers}, but devices has {len(self.devices)}"
            )
        if self.num_servers < 1:
            raise ValueError(f"expected num_servers of at least 1, got {self.num_servers}")
        if self.api_processes < 1:
            raise ValueError(f"expected api_processes of at least 1, got {self.api_processes}")
        if self.media_folder is not None and not self.urls:
            raise ValueError("media_folder is for servers of `urls`")
        if self.lora == "adapter" and (self.urls or self.transfer != "file"):
            raise ValueError(
                "lora 'adapter' needs servers that the run starts, and transfer 'file'"
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls: {url!r} must start with http:// or https://")

    def start(self, policy: ServedPolicy) -> RunningServers:
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
        return RunningServers(self, policy, None)

    def memory(self, policy: ServedPolicy, capacity: int) -> tuple[int, int]:
        """As in `VllmOptions`; servers elsewhere, or on `devices` of their own, take nothing here."""
        stays, generating = super().memory(policy, capacity)
        here = 0 if self.urls or self.devices else self.num_servers
        return here * stays, here * generating

    def check(self, policy: ServedPolicy) -> None:
        """See `VllmOptions`; a server on a CPU does not tell which experts it chose."""
        super().check(policy)
        if policy.config.router_replay and policy.device.type == "cpu":
            raise UserError(
                "model.router_replay: vLLM's servers tell which experts they chose on GPUs only; use "
                "engine vllm or hf"
            )

    def on(self, fleet: Fleet) -> FleetEngine:
        """Return the engine with the servers that `vlmrl launch` keeps (`cluster.serve`).

        Raises:
            UserError: an option excludes them.
        """
        if self.urls or self.devices or self.num_servers != 1:
            raise UserError(
                "cluster.serve.replicas says how many servers there are: leave out the engine's options "
                "urls, devices and num_servers"
            )
        if self.transfer not in ("tcp", "nccl"):
            raise UserError(
                "cluster.serve: the servers may be on other machines: expected engine option transfer: "
                f"tcp or nccl, got {self.transfer!r}"
            )
        return FleetEngine(self, fleet)

    def server_arguments(self, policy: ServedPolicy, folder: str, backend: str) -> dict[str, Any]:
        """Return the arguments of a server that takes weights by this back-end, see `arguments`."""
        arguments = self.arguments(policy, folder)
        arguments["weight_transfer_config"] = {"backend": backend}
        if self.api_processes > 1:
            arguments["api_server_count"] = self.api_processes
        return arguments


@dataclass(frozen=True)
class FleetEngine(Engine):
    """The engine on servers that others start, watch and start again."""

    options: VllmServer
    fleet: Fleet
    capabilities = VllmServer.capabilities

    def start(self, policy: ServedPolicy) -> RunningServers:
        """Wait for servers of the fleet, and send them the policy's weights.

        Raises:
            UserError: none becomes ready, or one serves another model.
        """
        self.options.check(policy)
        return RunningServers(self.options, policy, self.fleet)


class _Store:
    """What the main rank sends servers: weights, and files of media that they can read."""

    def __init__(self, options: VllmServer, policy: ServedPolicy, fleet: Fleet | None) -> None:
        self._temporary = scratch(policy.weight_bytes() + KEPT)
        self.folder = Path(self._temporary.name)
        elsewhere = bool(options.urls or fleet)
        self.adapter = self.folder / ADAPTER
        """Where servers read the adapter."""
        self._shared = make_shared(options.media_folder if elsewhere else self.folder)
        self.media = self._shared.name if self._shared else None
        """Folder of media; None: each request holds its own."""
        self.held = HeldWeights(self.folder)
        address = fleet.address if fleet else options.transfer_address
        name, seconds = options.transfer, options.sync_timeout_s
        self.transfer = build_transfer(name, self.held, address, seconds)

    def close(self) -> None:
        """Leave the servers' groups, and remove the files."""
        self.transfer.close()
        if self._shared is not None:
            self._shared.cleanup()
        self._temporary.cleanup()


class RunningServers(ConcurrentRunningEngine):
    """Servers that hold the weights of the last sync, and the prompts that they are asked."""

    def __init__(self, options: VllmServer, policy: ServedPolicy, fleet: Fleet | None) -> None:
        super().__init__(options.capabilities)
        self.options, self._policy, self._fleet = options, policy, fleet
        self._version, self._temperature = -1, 1.0
        self._servers: list[Server] = []
        self._media: MediaFolder | None = None
        """None: each request holds its media."""
        self._jobs: list[Job] = []
        self._begun = 0
        self._lock = threading.RLock()
        self._store: _Store | None = None
        """None on other ranks than the main one, which sends the weights."""
        atexit.register(self.close)
        try:
            if distributed.is_main():
                self._prepare()
            self.sync(policy)
        except BaseException:
            self.close()
            raise

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Return groups of `sampling.n` completions, in the prompts' order; each also to `finished`.

        The draw depends on `sampling.seed` and each prompt's place in the batch, not on the server.
        Several calls may run at a time, with one temperature.

        Raises:
            UserError: a prompt does not fit, is refused, reaches the server in other tokens than the
                trainer's, or was lost more than `max_restarts` times.
            LostEngine: a server failed, with several ranks and none to take its place.
        """
        for prompt in batch.prompts:
            self.options.require_room(self._policy, prompt, sampling.max_tokens)
        with self._lock:  # not in the middle of an update
            routers = routers_of(self._policy)
            family, processor = self._policy.family, self._policy.processor
            prompts = [family.served(processor, prompt) for prompt in batch.prompts]
            job = Job(prompts, sampling, self._version, self._begun, routers)
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

    def sync(self, policy: ServedPolicy) -> None:
        """Send all servers the policy's weights; generation is paused meanwhile.

        All ranks call it, and return when the servers have the weights. All are gathered before any is
        sent, so that no rank waits for a server while others wait for it in the gathering.

        Raises:
            UserError: a server does not take them, even after restarts.
        """
        with self._lock:
            self._policy = policy
            whole = self.options.lacks_weights(first=self._version < 0)
            adapter = policy.training_state() if self.options.lora == "adapter" else {}
            if distributed.is_main():
                self._deliver(policy, whole, adapter)
            elif whole:
                policy.take_part(**self.options.form(policy))
            self._join(policy.version)

    def close(self) -> None:
        """Stop all servers that the run started, and remove the files."""
        atexit.unregister(self.close)
        servers, self._servers = self._servers, []
        for server in servers:
            server.stop()
        store, self._store, self._media = self._store, None, None
        if store is not None:
            store.close()

    # ----------------------------------------------------------------------------- generation

    def _round(self, job: Job, finished: Finished | None) -> None:
        """Send prompts to the ready servers until none waits, or no server is ready."""
        job.deadline = time.monotonic() + self.options.generate_timeout_s
        # Every rank and job begins with another server: a few prompts from each use all of them.
        servers = [s for s in in_turn(self._servers, distributed.rank() + job.number) if s.ready]
        if not servers:  # they are receiving new weights: `_bring_up` waits for that
            return
        width = job.width(self.options.max_num_seqs)
        with ThreadPoolExecutor(width * len(servers)) as pool:
            try:
                list(pool.map(lambda server: self._work(server, job, finished), servers * width))
            except BaseException:
                self._give_up(job, UserError("interrupted"))
                raise

    def _work(self, server: Server, job: Job, finished: Finished | None) -> None:
        while server.ready and (number := job.take()) is not None:
            prompt, life = job.prompts[number], server.life
            guesses = self.options.speculative_tokens > 0
            fields = sampling_fields(self._policy, job.sampling, number, guesses)
            try:
                adapter = self.options.lora == "adapter"
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
                if distributed.world() > 1 and self._fleet is None:
                    self._give_up(job, end_run(fault))
                    return
                log.warning("requested again: %s", fault)
                job.lost(number, fault, self.options.max_restarts)
            except UserError as error:
                self._give_up(job, error)

    @property
    def _newest(self) -> int:
        """The version that a server may have: other ranks learn of an update when it is over."""
        return self._version + (not distributed.is_main())

    def _give_up(self, job: Job, error: UserError | LostEngine) -> None:
        job.fail(error)
        if self._jobs == [job]:  # servers can only drop all requests at once
            drop_requests(self._servers)

    # ---------------------------------------------------------------------- servers and weights

    def _prepare(self) -> None:
        options, fleet = self.options, self._fleet
        token = secrets.token_urlsafe(32)  # what proves to the servers that it is the run that asks
        if options.urls and not (token := os.environ.get(serve.TOKEN, "")):
            raise UserError(f"engine option urls: set {serve.TOKEN} to the servers' token")
        if not options.urls and fleet is None:
            require_vllm()
        store = self._store = _Store(options, self._policy, fleet)
        if fleet is not None:
            arguments = options.server_arguments(self._policy, "", store.transfer.backend)
            fleet.launch(arguments, model_files(self._policy, store.folder / "model"))
            return
        urls = options.urls or ["not started"] * (len(options.devices) or options.num_servers)
        self._servers = [Server(url, token, options.sync_timeout_s) for url in urls]

    def _deliver(self, policy: ServedPolicy, whole: bool, adapter: Weights) -> None:
        if adapter:
            save_adapter(policy, adapter, self._own_store.adapter)
        if whole:
            self._own_store.held.replace(self.options.units(policy))
        first, self._version = self._version < 0, policy.version
        if self._fleet is not None:  # who is gone is not waited for
            self._servers, _ = refresh(self._servers, self._fleet, self.options.sync_timeout_s)
        ready = [server for server in self._servers if server.ready]
        self._update(ready, whole)
        if self._fleet is None:
            self._bring_up()
        else:
            self._take_in(self._fleet, wait=first)

    @property
    def _own_store(self) -> _Store:
        assert self._store is not None, "the main rank alone sends weights, until it closes"
        return self._store

    def _join(self, version: int) -> None:
        """Let all ranks use the main one's servers, which hold weights of this version."""
        own = [(server.url, server.token) for server in self._servers if server.ready]
        servers, media = distributed.from_main((own, self._store.media if self._store else None))
        if self._media is None and media is not None:
            self._media = MediaFolder(Path(media) / f"rank-{distributed.rank()}")
        if distributed.is_main():
            return
        self._version = version
        self._servers = [Server(url, token, self.options.sync_timeout_s) for url, token in servers]
        for server in self._servers:
            server.ready = True

    def _bring_up(self) -> None:
        """Start servers until each one runs and holds the last weights; of a fleet one is enough.

        Raises:
            UserError: a server is still down after `max_restarts` more tries.
            LostEngine: none of a fleet is left, with several ranks.
        """
        with self._lock:
            if self._fleet is not None:
                if not any(server.ready for server in self._servers):
                    if not distributed.is_main():
                        raise end_run(EngineFault("no server is left"))
                    self._take_in(self._fleet)
                return
            for _ in range(self.options.max_restarts + 1):
                down = [server for server in self._servers if not server.ready]
                if not down:
                    return
                faults = self._restart(down)
            if faults:
                fault = next(iter(faults.values()))
                raise UserError(f"gave up after {self.options.max_restarts + 1} tries: {fault}")

    def _take_in(self, fleet: Fleet, wait: bool = False) -> None:
        """Give weights to the servers of a fleet that lack them, until one is ready.

        `wait` also for those that are starting; else they join at a later sync.

        Raises:
            UserError: none is ready within `start_timeout_s`.
        """
        deadline = time.monotonic() + self.options.start_timeout_s
        while True:
            self._servers, starting = refresh(self._servers, fleet, self.options.sync_timeout_s)
            if new := [server for server in self._servers if not server.ready]:
                faults = ask_all(self._begin, new)
                self._update([server for server in new if server not in faults])
            ready = [server.url for server in self._servers if server.ready]
            late = time.monotonic() > deadline
            if ready and (late or not (wait and starting)):
                break
            if late:
                raise UserError(
                    f"cluster.serve: no server was ready after {self.options.start_timeout_s:g} s (engine "
                    "option start_timeout_s)"
                )
            time.sleep(0.5)
        fleet.synced(ready, self._version)

    def _restart(self, down: Sequence[Server]) -> dict[Server, EngineFault]:
        """Start servers and give them the weights: together at first, each alone once one has failed."""
        if not self.options.urls:
            self._launch(down)
        faults = ask_all(self._begin, down)
        begun = [server for server in down if server not in faults]
        new = all(server.life == 1 for server in self._servers)
        for group in [begun] if new else [[server] for server in begun]:
            faults |= self._update(group)
        return faults

    def _launch(self, down: Sequence[Server]) -> None:
        options, store = self.options, self._own_store
        model = store.folder / "model"  # it stays: vLLM reads it again when the first video comes
        save_model_files(self._policy, str(model))
        arguments = options.server_arguments(self._policy, str(model), store.transfer.backend)
        arguments["allowed_local_media_path"] = store.media
        if options.lora == "adapter":
            arguments["lora_modules"] = f"{ADAPTER}={store.adapter}"
        ipc = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if options.transfer == "ipc" else {}
        devices = dict(zip(self._servers, options.devices, strict=False))
        for server in down:
            own, environment = dict(arguments), dict(ipc)
            if server in devices:  # else those of the trainer
                own["tensor_parallel_size"] = len(devices[server].split(","))
                environment["CUDA_VISIBLE_DEVICES"] = devices[server]
            server.launch(command_line(own), environment, store.folder)

    def _begin(self, server: Server) -> None:
        """Bring a server from launched, or from any state if it runs elsewhere, to where it takes weights."""
        store, length = self._own_store, self.options.length_limit(self._policy)
        server.life += 1
        server.wait_until_healthy(self.options.start_timeout_s)
        shortcuts = self.options.shortcuts()
        server.require_model(self._policy, length, store.transfer.backend, shortcuts)
        if store.media is not None:
            server.require_folder(store.media)
        server.rpc("abandon_update", stage="start")
        store.transfer.open(server)
        server.rpc("set_temperature", self._temperature, stage="start")

    def _update(self, servers: Sequence[Server], whole: bool = True) -> dict[Server, EngineFault]:
        """Give servers the weights (`whole`) and the adapter; return the faults by server."""
        for server in servers:
            server.ready = False
        faults = ask_all(Server.pause, servers)
        if whole:
            faults |= self._own_store.transfer.send([s for s in servers if s not in faults])

        def resume(server: Server) -> None:
            if self.options.lora == "adapter":
                server.rpc("take_adapter", str(self._own_store.adapter), stage="sync")
            server.resume(self._version)
            server.ready = True

        return faults | ask_all(resume, [s for s in servers if s not in faults])

    def _set_temperature(self, temperature: float) -> None:
        def warm(server: Server) -> None:
            server.ready = False
            server.rpc("set_temperature", temperature, stage="generation")
            server.ready = True

        with self._lock:
            # Another rank may have set another one since.
            if temperature == self._temperature and distributed.world() == 1:
                return
            self._temperature = temperature
            # A server that does not take it counts as broken, and gets it when it is restarted.
            faults = ask_all(warm, [server for server in self._servers if server.ready])
            if faults and distributed.world() > 1 and self._fleet is None:
                raise end_run(next(iter(faults.values())))
