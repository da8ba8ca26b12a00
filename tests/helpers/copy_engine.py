"""An engine that really generates in other threads, with weights of its own that it takes at `sync`."""

from __future__ import annotations

import copy
import random
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl.engines.base import Capabilities, ConcurrentRunningEngine, Engine, Finished, Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.system.seeds import seed_of


@dataclass(frozen=True)
class CopyEngine(Engine):
    """The hf engine on a copy of the model, prompt by prompt.

    `pause`: longest random wait before a prompt, in seconds. `poison`: sample whose prompt fails.
    """

    pause: float = 0.0
    poison: str = ""
    capabilities = Capabilities(concurrent=True, every_rank=True)

    def start(self, policy: Any) -> RunningCopy:
        return RunningCopy(self, policy)


class RunningCopy(ConcurrentRunningEngine):
    """The copy, and what was asked of it."""

    def __init__(self, options: Any, policy: Policy) -> None:
        super().__init__(options.capabilities)
        self.options = options
        self.calls: list[tuple[str, list[str]]] = []
        """Thread and samples of every call of generate that sampled."""
        self.mixed = False
        """Whether greedy and sampled calls ever ran at a time."""
        self._lock, self._ended = threading.Lock(), False
        self._running: list[Sampling] = []
        self._policy: Any = copy.copy(policy)
        self._policy.base = copy.deepcopy(policy.base)
        self._hf = Hf().start(self._policy)

    def sync(self, policy: Any) -> None:
        with self._lock:
            self._policy.base.load_state_dict(policy.base.state_dict())
            self._policy.version = policy.version

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        ids = [prompt.sample.id for prompt in batch.prompts]
        if not sampling.greedy:
            self.calls.append((threading.current_thread().name, ids))
        chance = random.Random(sampling.seed)
        self._running.append(sampling)
        try:
            return self._generate(batch, sampling, finished, chance)
        finally:
            self._running.remove(sampling)

    def _generate(self, batch: Any, sampling: Any, finished: Any, chance: Any) -> Rollouts:
        groups = []
        for number, prompt in enumerate(batch.prompts):
            time.sleep(chance.uniform(0, self.options.pause))
            with self._lock:
                self.mixed |= len({s.greedy for s in self._running}) > 1
                if self._ended:
                    raise UserError("generation was aborted")
                if prompt.sample.id == self.options.poison:
                    raise UserError(f"sample {prompt.sample.id!r} is refused")
                seed = seed_of(sampling.seed, number)
                draw = replace(sampling, seed=seed, keys=sampling.keys[number : number + 1])
                made = self._hf.generate(PromptBatch((prompt,)), draw)
            groups.append(made.completions[0])
            if finished is not None:
                finished(number, groups[-1])
        return Rollouts(batch, tuple(groups), version=made.version)

    def abort(self) -> None:
        self._ended = True

    def close(self) -> None:
        self._ended = True


class DrainedEngine(CopyEngine):
    """Finishes what was issued before it takes new weights, so that a run is the same every time."""

    def start(self, policy: Any) -> RunningCopy:
        return RunningDrained(self, policy)


class RunningDrained(RunningCopy):
    def sync(self, policy: Any) -> None:
        for thread in threading.enumerate():
            if thread.name == "rollouts":
                thread.join()
        super().sync(policy)


@dataclass(frozen=True)
class RewardedEngine(CopyEngine):
    """Generates a prompt after the first one only when a reward of the first has been computed."""

    mark: str = ""

    def start(self, policy: Any) -> RunningCopy:
        return RunningRewarded(self, policy)


class RunningRewarded(RunningCopy):
    def _generate(self, batch: Any, sampling: Any, finished: Any, chance: Any) -> Rollouts:
        def and_wait(number: int, group: Any) -> None:
            finished(number, group)
            deadline = time.monotonic() + 120
            while not Path(self.options.mark).exists():
                if time.monotonic() > deadline:
                    raise UserError("no reward was computed while the others were generated")
                time.sleep(0.01)

        return super()._generate(batch, sampling, finished and and_wait, chance)


@dataclass(frozen=True)
class StragglerEngine(CopyEngine):
    """Writes the completions of sample `slow` over `late` updates: their first two tokens are by the version
    at which they began, as far as `versions` say, the others by the one that is there when they end."""

    slow: str = ""
    late: int = 0

    def start(self, policy: Any) -> RunningCopy:
        return RunningStraggler(self, policy)


class RunningStraggler(RunningCopy):
    def _generate(self, batch: Any, sampling: Any, finished: Any, chance: Any) -> Rollouts:
        ids = [prompt.sample.id for prompt in batch.prompts]
        numbers = [n for n, name in enumerate(ids) if name != self.options.slow]
        groups = {}
        for number in [*numbers, *(n for n in range(len(ids)) if n not in numbers)]:
            began = self._policy.version
            while number not in numbers and self._policy.version < began + self.options.late:
                if self._ended:
                    raise UserError("generation was aborted")
                time.sleep(0.005)
            one = replace(sampling, seed=seed_of(sampling.seed, number))
            part = super()._generate(batch.part([number]), one, None, chance)
            (group,) = part.completions
            if number not in numbers and self.options.late:
                group = tuple(replace(c, versions=_halves(began, c)) for c in group)
            groups[number] = group
            finished(number, group)
        return Rollouts(batch, tuple(groups[n] for n in range(len(ids))))


def _halves(began: int, completion: Any) -> tuple[tuple[int, int], ...]:
    ((version, length),) = completion.versions
    runs = ((began, min(2, length)), (version, length - min(2, length)))
    return tuple(run for run in runs if run[1])
