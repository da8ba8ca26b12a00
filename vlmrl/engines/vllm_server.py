"""Rollouts by vLLM in processes of their own: one or several servers, here or elsewhere.

Servers are started as children (`serve.py`) on this machine's loopback, or found at `urls`. Prompts
are dealt to whichever server is free; what a dead, hung or wrong server had is asked for again.

With several ranks the main one has the servers and sends the weights; the others learn from it, at
every sync, where the servers are. A fault within a step then ends the run: only the main rank could
start a server again, and it may be waiting for the others.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vlmrl.engines import serve
from vlmrl.engines.base import Finished, Sampling
from vlmrl.engines.completions import completions
from vlmrl.engines.vllm_parts.job import Job, ask
from vlmrl.engines.vllm_parts.options import VllmOptions, scratch, weight_bytes
from vlmrl.engines.vllm_parts.requests import (
    EngineFault,
    check,
    refuse_long,
    refuse_many,
    sampling_fields,
)
from vlmrl.engines.vllm_parts.server import Server, command_line
from vlmrl.engines.vllm_parts.transfer import Name, transfer
from vlmrl.engines.vllm_parts.vllm_import import require_vllm
from vlmrl.errors import UserError
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system import distributed

if TYPE_CHECKING:
    from vlmrl.policy.policy import Policy

log = logging.getLogger(__name__)


@dataclass
class VllmServer(VllmOptions):
    """vLLM servers, started here or found running.

    `num_servers`: how many to start. `devices`: what each of them sees (CUDA_VISIBLE_DEVICES), one
    entry a server, e.g. ["1", "2,3"]; a server with several uses tensor parallelism. `urls`:
    servers that run already (`python -m vlmrl.engines.serve`), instead of starting any; their token
    is read from VLMRL_SERVER_TOKEN. `transfer`: how weights get there; file needs servers on this
    machine. `transfer_address`: by which servers reach this machine (gloo, nccl). `start_timeout_s`,
    `sync_timeout_s`: seconds until a server must be ready, and for each part of a weight update;
    `generate_timeout_s` is for the completions of one batch. More options: see `VllmOptions`.
    """

    num_servers: int = 1
    devices: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    transfer: Name = "file"
    transfer_address: str = "127.0.0.1"
    start_timeout_s: float = 600.0
    sync_timeout_s: float = 300.0
    exact: ClassVar[bool] = False
    concurrent: ClassVar[bool] = True
    every_rank: ClassVar[bool] = True
    _policy: Any = field(default=None, init=False, repr=False)
    _servers: list[Server] = field(default_factory=list, init=False, repr=False)
    _transfer: Any = field(default=None, init=False, repr=False)
    _folder: Any = field(default=None, init=False, repr=False)
    _version: int = field(default=-1, init=False, repr=False)
    _temperature: float = field(default=1.0, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)
    _jobs: list[Job] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.urls and (self.devices or self.num_servers != 1):
            raise ValueError("give either urls, or servers or devices to start")
        if self.devices and self.num_servers not in (1, len(self.devices)):
            raise ValueError(
                f"num_servers is {self.num_servers}, but devices has {len(self.devices)}"
            )
        if self.num_servers < 1:
            raise ValueError(f"num_servers must be at least 1 (found {self.num_servers})")
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls: {url!r} must start with http:// or https://")

    def start(self, policy: Policy) -> None:
        """Start the servers, or find them, and give them the policy's weights.

        Raises:
            UserError: vLLM is not installed, a server does not start or serves another model.
        """
        if self.lora == "adapter":
            raise UserError("engine option lora: 'adapter' is for engine vllm; use 'merged'")
        self.check(policy)
        if not self.urls and distributed.machines_differ():
            raise UserError(
                "engine vllm_server: servers that are started here listen on this machine only, and "
                "there are processes on others; start them by hand and give engine option urls"
            )
        size = weight_bytes(policy)  # of a sharded policy all ranks ask together
        if distributed.is_main():
            self._prepare(size)
        self.sync(policy)

    def _prepare(self, size: int) -> None:
        """What it takes to reach servers; `size` is that of the weights, in bytes."""
        if self.urls:
            token = os.environ.get(serve.TOKEN, "")
            if not token:
                raise UserError(f"engine option urls: set {serve.TOKEN} to the servers' token")
        else:
            require_vllm()
            token = secrets.token_urlsafe(32)
        atexit.register(self.close)
        self._folder = scratch(2 * size)
        folder = Path(self._folder.name)
        self._transfer = transfer(self.transfer, folder, self.transfer_address, self.sync_timeout_s)
        places = self.urls or ["not started"] * (len(self.devices) or self.num_servers)
        self._servers = [Server(url, token, self.sync_timeout_s) for url in places]

    def sync(self, policy: Policy) -> None:
        """Give all servers the policy's weights; what they are writing meanwhile is paused.

        All ranks call it and return when the servers have the weights.

        Raises:
            UserError: a server cannot be brought to take them.
        """
        with self._lock:
            self._policy = policy
            weights = policy.weights()  # of a sharded policy all ranks ask together
            if distributed.is_main():
                self._deliver(policy, weights)
            self._join(policy.version)

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Groups of `sampling.n` completions, in the prompts' order; each also to `finished`.

        The draw depends on `sampling.seed` and each prompt's place in the batch, not on the server.
        Several calls may run at a time, with one temperature.

        Raises:
            UserError: a prompt does not fit, is refused, or is seen otherwise than by the trainer;
                or it was lost more than `max_restarts` times.
        """
        assert self._servers, "engine.start was not called"
        refuse_long(batch, sampling, self.length_limit(self._policy))
        refuse_many(batch, self.limits)
        with self._lock:  # not in the middle of an update
            job = Job(batch.prompts, sampling, self._version)
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
        """Make every call of generate that is running raise soon."""
        jobs = list(self._jobs)
        for job in jobs:
            job.fail(UserError("generation was aborted"))
        if jobs:
            self._drop_requests()

    def close(self) -> None:
        """End all servers that were started here, and remove the files."""
        atexit.unregister(self.close)
        servers, self._servers = self._servers, []
        for server in servers:
            server.stop()
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
        self._policy = None

    def memory(self, policy: Policy, capacity: int) -> tuple[int, int]:
        """See `VllmOptions`; servers elsewhere, or on `devices` of their own, take nothing here."""
        stays, generating = super().memory(policy, capacity)
        here = 0 if self.urls or self.devices else self.num_servers
        return here * stays, here * generating

    # -------------------------------------------------------------------------------------- servers

    def _deliver(self, policy: Policy, weights: Mapping[str, torch.Tensor]) -> None:
        dtype = getattr(torch, self.dtype_name(policy))
        named = policy.family.export_names(weights)
        self._transfer.hold({name: w.to(dtype) for name, w in named.items()})
        self._version = policy.version
        self._each(self._update, [s for s in self._servers if s.ready])
        self._bring_up(weights)

    def _join(self, version: int) -> None:
        """Let all ranks use the main one's servers, which hold weights of this version."""
        found = distributed.from_main([(server.url, server.token) for server in self._servers])
        if distributed.is_main():
            return
        self._version = version
        self._servers = [Server(url, token, self.sync_timeout_s) for url, token in found]
        for server in self._servers:
            server.ready = True

    def _bring_up(self, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Until every server runs and holds the last weights; `max_restarts` tries after the first.

        `weights`: the policy's, if they are at hand.
        """
        with self._lock:
            for _ in range(self.max_restarts + 1):
                down = [server for server in self._servers if not server.ready]
                if not down:
                    return
                faults = self._launch(down, weights)
            if faults:
                raise UserError(f"gave up after {self.max_restarts + 1} tries: {faults[0]}")

    def _launch(
        self, down: Sequence[Server], weights: Mapping[str, torch.Tensor] | None
    ) -> list[EngineFault]:
        if self.urls:
            return self._each(self._begin, down)
        policy: Policy = self._policy
        folder = Path(self._folder.name)
        model = folder / "model"
        weights = policy.weights() if weights is None else weights
        try:
            policy.family.export(policy.base, str(model), weights)
            policy.processor.save_pretrained(model)
            given = self.arguments(policy, str(model))
            given["weight_transfer_config"] = {"backend": self._transfer.backend}
            for server in down:
                own, environment = self._place(server)
                server.launch(command_line({**given, **own}), environment, folder)
            return self._each(self._begin, down)
        finally:  # the rest stays: vLLM reads it again when the first video comes
            for file in model.glob("*.safetensors"):
                file.unlink()

    def _place(self, server: Server) -> tuple[dict[str, Any], dict[str, str]]:
        """More arguments and environment of one server: the devices that it is to use."""
        environment = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if self.transfer == "ipc" else {}
        if not self.devices:
            return {}, environment
        devices = self.devices[self._servers.index(server)]
        environment["CUDA_VISIBLE_DEVICES"] = devices
        return {"tensor_parallel_size": len(devices.split(","))}, environment

    def _begin(self, server: Server) -> None:
        """From launched, or from anywhere with a server elsewhere, to ready."""
        server.life += 1
        server.wait_until_healthy(self.start_timeout_s)
        _same_model(server, self._policy, self.length_limit(self._policy), self._transfer.backend)
        server.rpc("abandon_update", stage="start")
        self._transfer.open(server)
        server.rpc("set_temperature", self._temperature, stage="start")
        self._update(server)

    def _update(self, server: Server) -> None:
        server.ready = False
        server.pause()
        self._transfer.send(server)
        server.resume(self._version)
        server.ready = True

    def _set_temperature(self, temperature: float) -> None:
        with self._lock:
            # Another rank may have set another one since.
            if temperature == self._temperature and distributed.world() == 1:
                return
            self._temperature = temperature
            # A server that does not take it counts as broken, and gets it when it is up again.
            running = [server for server in self._servers if server.ready]
            faults = self._each(self._warm, running)
            if faults and distributed.world() > 1:
                raise _final(faults[0])

    def _warm(self, server: Server) -> None:
        server.ready = False
        server.rpc("set_temperature", self._temperature, stage="generation")
        server.ready = True

    def _each(self, do: Callable[[Server], None], servers: Sequence[Server]) -> list[EngineFault]:
        """Do something with several servers at once; what went wrong, and is logged."""

        def one(server: Server) -> EngineFault | None:
            try:
                do(server)
            except EngineFault as fault:
                log.warning("%s", fault)
                return fault
            return None

        if not servers:
            return []
        with ThreadPoolExecutor(len(servers)) as pool:
            return [fault for fault in pool.map(one, servers) if fault is not None]

    # ----------------------------------------------------------------------------------- generation

    def _round(self, job: Job, finished: Finished | None) -> None:
        """Ask the servers that are ready until nothing waits, or none is ready any more."""
        job.deadline = time.monotonic() + self.generate_timeout_s
        servers = [server for server in self._servers if server.ready]
        if not servers:
            return  # they are being given new weights: `_bring_up` waits for that
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
                answer = ask(server, prompt, fields, job.deadline)
                if job.sampling.greedy:
                    answer = answer.repeated(job.sampling.n)
                versions = (job.version, self._version)
                check(prompt, answer, self._policy, job.sampling, versions)
                (job.groups[number],) = completions(self._policy, [prompt], [answer.group])
                if finished is not None:
                    finished(number, job.groups[number])
            except EngineFault as fault:
                if job.error is not None:
                    return  # it was aborted
                if server.life == life:  # else it was started again since, for another job
                    server.ready = False
                if distributed.world() > 1:
                    self._give_up(job, _final(fault))
                    return
                log.warning("asked for again: %s", fault)
                job.lost(number, fault, self.max_restarts)
            except UserError as error:
                self._give_up(job, error)

    def _give_up(self, job: Job, error: UserError) -> None:
        job.fail(error)
        if self._jobs == [job]:  # the servers can only drop everything
            self._drop_requests()

    def _drop_requests(self) -> None:
        """Let all servers drop all that they write; whoever waits for it gets it unfinished."""
        servers = [server for server in self._servers if server.ready]
        everything: dict[str, list[str]] = {"request_ids": []}
        self._each(lambda s: s.post("/abort_requests", everything, 10.0, "abort"), servers)


def _final(fault: EngineFault) -> UserError:
    return UserError(
        f"{fault} (with several processes a server is not started again within a step: go on from "
        "the last checkpoint with resume=auto)"
    )


def _same_model(server: Server, policy: Policy, length: int, backend: str) -> None:
    """Raise UserError unless the server can stand in for the policy's model."""
    config = policy.base.config
    text = config.get_text_config()
    found = server.rpc("describe", stage="start")
    wanted = {
        "model_type": config.model_type,
        "hidden_size": text.hidden_size,
        "num_hidden_layers": text.num_hidden_layers,
        "vocab_size": text.vocab_size,
        "logprobs_mode": "raw_logprobs",
        "transfer": backend,
    }
    for name, value in wanted.items():
        if found[name] != value:
            raise UserError(f"{server} has {name} {found[name]!r}, the trainer needs {value!r}")
    if found["max_model_len"] < length:
        raise UserError(
            f"{server} has max_model_len {found['max_model_len']}, less than the engine's {length}"
        )
