"""Rollouts from vLLM in separate processes: one or several servers, on this machine or on others.

Prompts go to whichever server is free; the prompts of a server that is dead, hung or wrong are requested
again. Where servers come from and how they get weights: `served_weights`.

With several ranks the main one owns the servers and sends the weights; it tells the others where the
servers are at every sync. A fault within a step then ends the run, unless another server of a fleet is
left: only the main rank could restart a server, and it may be waiting for the others.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar

from vlmrl.engines.base import Finished, Sampling
from vlmrl.engines.completions import make_completions
from vlmrl.engines.routed_experts import routers_of
from vlmrl.engines.served_weights import ServerLifecycle
from vlmrl.engines.vllm_parts.job import Job, ask
from vlmrl.engines.vllm_parts.requests import EngineFault, check, end_run, sampling_fields
from vlmrl.engines.vllm_parts.server import Server, drop_requests, in_turn
from vlmrl.errors import LostEngine, UserError
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system import distributed

log = logging.getLogger(__name__)


@dataclass
class VllmServer(ServerLifecycle):
    """vLLM servers, started by the run or already running. More options: see `ServerOptions`."""

    placed: ClassVar[bool] = True
    routes: ClassVar[bool] = True
    every_rank: ClassVar[bool] = True
    _jobs: list[Job] = field(default_factory=list, init=False, repr=False)
    _begun: int = field(default=0, init=False, repr=False)

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
                if distributed.world() > 1 and self.fleet is None:
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

    def _give_up(self, job: Job, error: UserError | LostEngine) -> None:
        job.fail(error)
        if self._jobs == [job]:  # servers can only drop all requests at once
            drop_requests(self._servers)
