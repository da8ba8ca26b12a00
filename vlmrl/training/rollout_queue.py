"""Rollouts of the loader's prompts; up to η batches are generated while the policy trains.

η is `rollout.max_staleness`. A batch is issued only when one is taken, and every step takes at least one.
So with at most η batches issued beyond the next one, no token is older than η policy versions when it
is trained on. With η = 0 a batch is generated when it is taken, without a thread.

With η = 2, where each step takes one batch; the weights of version k are those that step k trains on:

    step    issued at its start    trained on    its tokens are of versions
    0       0, 1, 2                0             0
    1       3                      1             0 to 1
    2       4                      2             0 to 2
    3       5                      3             1 to 3
    4       6                      4             2 to 4

Batches are taken in the loader's order. With `rollout.streaming` groups are, as they are finished: of those
that are, the P that were issued first, whichever batches they came with. So nobody waits for the longest
completion of a batch, whose tokens may become older than η meanwhile: `within_bound` gives those no weight.
As many groups are in flight as without. Three prompts a batch, η = 1, where b takes long:

    step    issued at its start    trained on    in flight or finished, after it
    0       abc def                a c d         b ef
    1       ghi                    e f g         b hi
    2       jkl                    b h i         jkl

With several ranks each generates for its own prompts, at its own pace; they meet in `fill`, `take`,
`drain` and `collect_state`, which all of them call in the same order.

Where the config changes over training, a batch is drawn and sampled as the config is at the step for
which it is issued. That step is part of its key, so a resumed run draws and samples it alike.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from vlmrl.config import Config
from vlmrl.data.loader import Loader
from vlmrl.engines.base import ConcurrentRunningEngine, RunningEngine, Sampling
from vlmrl.errors import UserError
from vlmrl.policy.policy import Policy
from vlmrl.runs import rank_shards
from vlmrl.schema import Advantages, Completion, Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed
from vlmrl.system.seeds import seed_of
from vlmrl.system.timers import IdleMeter

Group = tuple[Completion, ...]
SEED_PURPOSE = 11
"""Part of every sampling seed; see `BatchDraw.seed`."""
GRACE = 15.0
"""Seconds that threads get to end when the run ends."""
LOOK_S = 0.05
"""Seconds between two looks of several ranks at what each of them has finished."""


class RolloutQueue:
    """The batches that are issued and not yet trained on, oldest first.

    With η > 0 the engine must be a `ConcurrentRunningEngine`. `whole` as in `rank_shards.gather_groups`. Each
    group of a concurrent engine is given to `finished` as soon as it is whole, with the progress of the
    step that trains on it; from any thread.
    """

    def __init__(
        self,
        loader: Loader,
        engine: RunningEngine,
        policy: Policy,
        config: Config,
        whole: bool = False,
        finished: Callable[[Prompt, Group, float], None] | None = None,
    ) -> None:
        self._staleness, self._streaming = config.rollout.max_staleness, config.rollout.streaming
        self._loader, self._engine, self._policy, self._config = loader, engine, policy, config
        self._whole, self._finished = whole, finished
        self._pending: deque[_PendingBatch] = deque()
        self._news = threading.Event()
        """Set when a group is finished, or a thread ends."""
        self._saved: deque[Mapping[str, Any]] = deque()
        self._observed: Mapping[str, np.ndarray] = {}
        self._cursor: Mapping[str, Any] | None = None
        self._meter = IdleMeter()
        self._waited = 0.0
        self._dropped = 0

    # ------------------------------------------------------------------------------- a step's batches

    def fill(self, step: int, extra: int) -> None:
        """Draw prompts and issue them until η batches are pending beyond the next one.

        `step` counts finished steps, `extra` the batches that this step has taken; both are part of
        the sampling seed. No batch is issued that only a step after the last would take.
        """
        if extra == 0:
            self._meter.lap()
            self._waited = 0.0
            if self._staleness:
                distributed.barrier()  # another rank may be evaluating still, at another temperature
        self._cursor = self.cursor  # what is drawn now is not taken
        while (ahead := self._ahead) <= self._staleness:
            if ahead and step + ahead >= self._config.run.steps:
                return
            pending = self._issue(step + ahead, extra, ahead)
            self._pending.append(pending)
            if self._staleness:
                pending.start()

    def take(self) -> Rollouts:
        """Return the oldest batch with all its completions: wait for them, or with η = 0 generate them.

        With `rollout.streaming` it is a batch of the first P groups that are finished.

        Raises:
            Exception: whatever went wrong while they were generated.
        """
        begin = time.monotonic()
        rollouts = self._take_finished() if self._streaming else self._take_oldest()
        self._waited += time.monotonic() - begin
        return rollouts

    def within_bound(self, advantages: Advantages, rollouts: Rollouts, version: int) -> Advantages:
        """Return the advantages for training weights of `version`; changed with streaming only.

        Tokens more than η versions old then get the weight 0 in the policy's loss, `token_weight` [P, G, T];
        the metric `rollout/too_old` is their share, `rollout/versions` how many versions wrote a completion.
        """
        if not self._streaming:
            return advantages
        oldest, left_out = version - self._staleness, 0
        completions = [c for group in rollouts.completions for c in group]
        lengths = [c.num_tokens for c in completions]
        weight = torch.ones(*rollouts.shape, max(lengths, default=0))
        for p, group in enumerate(rollouts.completions):
            for g, completion in enumerate(group):
                old = sum(count for v, count in completion.versions if v < oldest)
                weight[p, g, :old] = 0.0  # versions only grow along a completion
                left_out += old
        metrics = {
            **advantages.metrics,
            "rollout/too_old": left_out / max(1, sum(lengths)),
            "rollout/versions": sum(len(dict(c.versions)) for c in completions)
            / max(1, len(completions)),
        }
        extra = dict(advantages.extra)
        if left_out:
            extra["token_weight"] = weight * extra.get("token_weight", 1.0)
        return replace(advantages, metrics=metrics, extra=extra)

    def drain(self) -> None:
        """Wait until no rank generates anything; finished groups stay, errors wait for `take`."""
        for pending in self._pending:
            pending.join()
        if self._staleness:
            distributed.barrier()

    def close(self) -> None:
        """Abort and forget all pending batches; safe to call twice."""
        deadline = time.monotonic() + GRACE
        while any(pending.running for pending in self._pending) and time.monotonic() < deadline:
            # Repeatedly: a thread may be just about to call the engine.
            cast(ConcurrentRunningEngine, self._engine).abort()
            for pending in self._pending:
                pending.join(0.1)
        self._pending.clear()

    def metrics(self, rollouts: Rollouts, version: int) -> dict[str, float]:
        """Return the metrics of a step that trained weights of `version` on `rollouts`; empty with η = 0.

        `rollout/staleness`, `rollout/staleness_max`: versions between a token and its training;
        `rollout/off_policy`: share of tokens sampled from older weights; `rollout/stale_dropped`:
        groups of a checkpoint that were too old and were generated again;
        `rollout/trainer_waiting`, `rollout/generation_idle`: shares of the step's own time, which
        begins with its first `fill`.
        """
        if not self._staleness:
            return {}
        ages = [(version - v, n) for g in rollouts.completions for c in g for v, n in c.versions]
        tokens = max(1, sum(n for _, n in ages))
        idle, passed = self._meter.lap()
        dropped, self._dropped = self._dropped, 0
        return {
            "rollout/staleness": sum(age * n for age, n in ages) / tokens,
            "rollout/staleness_max": float(max((age for age, _ in ages), default=0)),
            "rollout/off_policy": sum(n for age, n in ages if age > 0) / tokens,
            "rollout/stale_dropped": float(dropped),
            "rollout/trainer_waiting": self._waited / passed,
            "rollout/generation_idle": idle / passed,
        }

    # ------------------------------------------------------------------------------------ checkpoint

    @property
    def cursor(self) -> Mapping[str, Any]:
        """The loader's state before the first batch not wholly taken, from which a resumed run draws on."""
        return self._loader.state if self._cursor is None else self._cursor

    def collect_state(self) -> tuple[list[Mapping[str, Any]], dict[str, np.ndarray]]:
        """Return the issued batches with their finished groups, as JSON values, and what tools showed:
        on the main rank those of all ranks.
        """
        observed: dict[str, np.ndarray] = {}
        issued = [pending.state(observed) for pending in self._pending]
        if issued:
            shares = distributed.gather_to_main((issued, observed))
            issued = [_merge(of_ranks) for of_ranks in zip(*(s for s, _ in shares), strict=True)]
            observed = {name: array for _, arrays in shares for name, array in arrays.items()}
        waiting = [c for s in self._saved for g in s["groups"].values() for c in g["completions"]]
        names: Iterable[str] = ()
        if waiting:
            from vlmrl.interaction import saved_completions  # only rollouts ahead wait

            names = saved_completions.media_of(waiting)
        return [*issued, *self._saved], observed | {name: self._observed[name] for name in names}

    def restore(
        self,
        cursor: Mapping[str, object],
        state: Sequence[Mapping[str, object]],
        observed: Mapping[str, np.ndarray],
    ) -> None:
        """Continue from a checkpoint: `fill` draws the same prompts again and keeps finished groups.

        `state` and `observed` are what `collect_state` returned, with any number of ranks.

        Raises:
            UserError: the data differ from those of the checkpoint, or the order does.
        """
        if not self._streaming and any(batch.get("taken") for batch in state):
            raise UserError(
                "resume: expected rollout.streaming true, as in the checkpoint, got false: some groups of a "
                "batch are trained on, and others are not"
            )
        self._loader.restore(cursor)
        self._cursor = cursor
        self._saved = deque(state)
        self._observed = observed

    @property
    def _ahead(self) -> int:
        """Batches that are issued and not taken; with streaming their groups, in whole batches."""
        if not self._streaming:
            return len(self._pending)
        return sum(map(_PendingBatch.count_left, self._pending)) // self._config.rollout.prompts

    def _take_oldest(self) -> Rollouts:
        rollouts = self._pending[0].result(self._whole)
        self._cursor = self._pending.popleft().batch.cursor
        return rollouts

    def _take_finished(self) -> Rollouts:
        """Wait for as many groups as a batch has, of any batches, and return them in the order of issue."""
        pending = list(self._pending)
        places = self._wait_for(self._config.rollout.prompts)
        prompts = tuple(pending[batch].batch.prompts[number] for batch, number in places)
        groups = [pending[batch].take(number) for batch, number in places]
        home = {number: group for number, group in enumerate(groups) if group is not None}
        while self._pending and not self._pending[0].count_left():
            self._cursor = self._pending.popleft().batch.cursor
        longest = max(pending[batch].longest for batch, _ in places)
        return _gather(PromptBatch(prompts, self.cursor), home, self._whole, longest)

    def _wait_for(self, count: int) -> list[tuple[int, int]]:
        """Return where the first `count` finished groups are: the number of the batch, and in the batch."""
        while True:
            self._news.clear()
            own = [
                (b, n) for b, pending in enumerate(self._pending) for n in pending.finished_numbers
            ]
            finished = sorted(itertools.chain.from_iterable(distributed.gather(own)))
            if len(finished) >= count:
                return finished[:count]
            for pending in self._pending:
                pending.raise_error()
            self._news.wait(None if distributed.world() == 1 else LOOK_S)

    def _issue(self, step: int, extra: int, ahead: int) -> _PendingBatch:
        """Draw the next batch, which is trained on at most `ahead` steps after this one."""
        saved = self._saved.popleft() if self._saved else None
        if saved is not None:
            step, extra = saved["key"]
        draw = self._config.at_step(step).rollout
        progress = step / max(1, self._config.run.steps)
        batch = self._loader.next(draw.prompts, progress)
        finished: dict[int, Mapping[str, Any]] = {}
        taken: set[int] = set()
        if saved is not None:
            taken = set(saved.get("taken", ()))
            # With streaming those too old are kept: `within_bound` is about their tokens.
            oldest = 0 if self._streaming else self._policy.version + ahead - self._staleness
            finished = self._young_groups(saved["groups"], batch, draw.group_size, oldest)
        groups = self._read_groups(finished, batch)
        parts = (self._config.run.seed, SEED_PURPOSE, step, extra)
        # The rest of a saved batch must not repeat the draws of its finished groups.
        again = bool(finished or taken) and not self._engine.capabilities.keyed
        seed = seed_of(*parts, len(finished) + len(taken)) if again else seed_of(*parts)
        sampling = replace(Sampling.of(draw, draw.group_size, seed), branch=True)
        pending = _PendingBatch((step, extra), batch, groups, sampling, self._engine, self._meter)
        pending.longest, pending.taken, pending.news = draw.longest, taken, self._news
        if (tell := self._finished) is not None:
            pending.finished = lambda prompt, group: tell(prompt, group, progress)
        return pending

    def _read_groups(
        self, finished: Mapping[int, Mapping[str, Any]], batch: PromptBatch
    ) -> dict[int, tuple[Completion, ...]]:
        """Return the completions of this rank's saved groups, by number."""
        if not finished:
            return {}
        from vlmrl.interaction import saved_completions

        return {
            number: tuple(
                saved_completions.from_json(self._policy, prompt, completion, self._observed)
                for completion in group["completions"]
            )
            for number, group in finished.items()
            if rank_shards.is_here(prompt := batch.prompts[number])
        }

    def _young_groups(
        self, saved: Mapping[str, Mapping[str, Any]], batch: PromptBatch, size: int, oldest: int
    ) -> dict[int, Mapping[str, Any]]:
        """Return the saved groups of these prompts that can still be trained on, by number.

        Each has `size` completions, and none has tokens older than `oldest`.
        """
        from vlmrl.interaction import saved_completions

        young: dict[int, Mapping[str, Any]] = {}
        for number, prompt in enumerate(batch.prompts):
            group = saved.get(str(number))
            if group is None or group["sample"] != [prompt.sample.source, prompt.sample.id]:
                continue
            saved_ones = group["completions"]
            if len(saved_ones) != size or min(map(saved_completions.oldest, saved_ones)) < oldest:
                self._dropped += 1
                continue
            young[number] = group
        return young


class _PendingBatch:
    """A batch being generated: `groups` fills by prompt number, from a thread if it was started.

    They are those of this rank's own prompts.
    """

    def __init__(
        self,
        key: tuple[int, int],
        batch: PromptBatch,
        groups: dict[int, Group],
        sampling: Sampling,
        engine: RunningEngine,
        meter: IdleMeter,
    ) -> None:
        self.key, self.batch, self.groups, self.sampling = key, batch, groups, sampling
        self._engine, self._meter = engine, meter
        self.finished: Callable[[Prompt, Group], None] | None = None
        """Who else is given each group of a concurrent engine."""
        self.longest = sampling.max_tokens
        """Most tokens of a completion."""
        self.taken: set[int] = set()
        """Numbers of the prompts of all ranks whose groups are trained on already."""
        self.news = threading.Event()
        """What is set when a group is finished, or the thread ends."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def running(self) -> bool:
        """True while a thread generates for it."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start generating in a thread."""
        # Listed here: from now on groups are added by the thread, and taken.
        arguments = (self._list_missing(),)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="rollouts", daemon=True
        )
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread, if there is one."""
        if self._thread is not None:
            self._thread.join(seconds)

    def result(self, whole: bool) -> Rollouts:
        """Return the whole batch, or raise what the thread raised; `whole` as in `RolloutQueue`."""
        if self._thread is None:
            distributed.barrier()  # servers that the ranks share have one temperature at a time
            self._generate(self._list_missing())
        self.join()
        self.raise_error()
        return _gather(self.batch, self.groups, whole, self.longest)

    @property
    def finished_numbers(self) -> list[int]:
        """Numbers of this rank's finished groups that are not taken."""
        return list(self.groups)

    def count_left(self) -> int:
        """Return how many groups are not taken, finished or not, of all ranks."""
        return len(self.batch) - len(self.taken)

    def take(self, number: int) -> Group | None:
        """Take a finished group: return it, or None on other ranks than its home."""
        self.taken.add(number)
        group = self.groups.pop(number, None)
        if not self.count_left():  # it may have to wait for an older batch
            prompts = tuple(prompt.without_media() for prompt in self.batch.prompts)
            self.batch = replace(self.batch, prompts=prompts)
        return group

    def raise_error(self) -> None:
        """Raise what the thread raised, if it did."""
        if self._error is not None:
            raise self._error

    def state(self, observed: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the key, and the finished groups with their samples' source and id, as JSON values.

        What tools showed in them is added to `observed`.
        """
        from vlmrl.interaction import saved_completions

        groups = {}
        for number, group in sorted(dict(self.groups).items()):
            sample = self.batch.prompts[number].sample
            fields = [saved_completions.to_json(completion, observed) for completion in group]
            groups[str(number)] = {"sample": [sample.source, sample.id], "completions": fields}
        taken = {"taken": sorted(self.taken)} if self.taken else {}
        return {"key": list(self.key), "groups": groups, **taken}

    def _list_missing(self) -> list[int]:
        known = {*self.groups, *self.taken}
        return [n for n in rank_shards.numbers_here(self.batch) if n not in known]

    def _run(self, missing: list[int]) -> None:
        with self._meter:
            try:
                self._generate(missing)
            except BaseException as error:  # `result` raises it again
                self._error = error
        self.news.set()

    def _generate(self, missing: list[int]) -> None:
        if not missing:
            return
        batch = self.batch if len(missing) == len(self.batch) else self.batch.part(missing)
        sampling = rank_shards.own_draws(self._engine, self.sampling, missing)
        if isinstance(self._engine, ConcurrentRunningEngine):
            self._engine.generate(batch, sampling, lambda n, g: self._add(missing[n], g))
        else:
            generated = self._engine.generate(batch, sampling).completions
            self.groups.update(zip(missing, generated, strict=True))

    def _add(self, number: int, group: Group) -> None:
        if self.finished is not None:
            self.finished(self.batch.prompts[number], group)
        self.groups[number] = group  # from here on it may be taken
        self.news.set()


def _gather(batch: PromptBatch, home: Mapping[int, Group], whole: bool, longest: int) -> Rollouts:
    """Return the batch with all ranks' groups, see `rank_shards.gather_groups`."""
    groups = rank_shards.gather_groups(batch, home, whole)
    oldest = min((version for g in groups for c in g for version, _ in c.versions), default=0)
    return Rollouts(batch, groups, oldest, longest)


def _merge(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of one batch with the groups that the ranks finished of it."""
    groups = [item for state in of_ranks for item in state["groups"].items()]
    return {**of_ranks[0], "groups": dict(sorted(groups, key=lambda item: int(item[0])))}
