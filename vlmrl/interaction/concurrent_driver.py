"""The driver around an engine that generates in several threads: a slow tool holds up its own rollout.

Every rollout has a thread from its second turn on. What is drawn is that of `Driver`, whoever waits for whom.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from vlmrl.engines.base import ConcurrentEngine, Finished, Sampling
from vlmrl.errors import UserError
from vlmrl.interaction.driver import Driver, finish, keys_of, with_keys
from vlmrl.interaction.tools import ToolOutcome
from vlmrl.schema import Call, Completion, FinishReason, PromptBatch, Rollouts

__all__ = ["ConcurrentDriver"]

MAX_THREADS = 256
"""Rollouts of one call that go on at a time; others wait."""


@dataclass
class ConcurrentDriver(Driver, ConcurrentEngine):
    """`Driver` around a `ConcurrentEngine`."""

    concurrent: ClassVar[bool] = True
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)
    _running: set[_Running] = field(default_factory=set, init=False, repr=False)

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Generate as in `Driver`; `finished` is given every group as soon as it is whole."""
        keys = keys_of(batch, sampling)
        with ThreadPoolExecutor(min(MAX_THREADS, len(batch) * sampling.n)) as pool:
            running = _Running(self, batch, sampling, keys, finished, pool)
            self._running.add(running)
            try:
                first = cast(ConcurrentEngine, self.inner).generate(
                    batch, with_keys(self._first(sampling), keys), running.begin
                )
                running.wait()
            except BaseException:
                running.ended.set()
                raise
            finally:
                self._running.discard(running)
        if running.errors:
            raise running.errors[0]
        whole = tuple(running.groups[number] for number in range(len(batch)))
        return replace(first, batch=batch, completions=whole)

    def abort(self) -> None:
        """Make every running call of `generate` raise soon."""
        for running in list(self._running):
            running.ended.set()
        cast(ConcurrentEngine, self.inner).abort()

    # A tokenizer serves one thread at a time.
    def _show(self, row: Any, outcome: ToolOutcome, sampling: Sampling) -> FinishReason | None:
        with self._lock:
            return super()._show(row, outcome, sampling)

    def _count(self, calls: Sequence[Call]) -> None:
        with self._lock:
            super()._count(calls)


@dataclass(eq=False)
class _Running:
    """A call of `generate`: groups fill by prompt number, from the threads of their rollouts."""

    driver: ConcurrentDriver
    batch: PromptBatch
    sampling: Sampling
    keys: Sequence[Sequence[tuple[int, ...]]]
    finished: Finished | None
    pool: ThreadPoolExecutor
    groups: dict[int, tuple[Completion, ...]] = field(default_factory=dict)
    futures: deque[Future[None]] = field(default_factory=deque)
    errors: list[BaseException] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when no rollout is to go on."""

    def begin(self, number: int, said: Sequence[Completion]) -> None:
        """Let the rollouts of a group go on after their first turns."""
        rows = self.driver._begin(self.batch.prompts[number], said, self.keys[number])
        self._submit(number, rows, rows)

    def wait(self) -> None:
        """Wait for all rollouts; one that begins others has named them before it ends."""
        while self.futures:
            self.futures.popleft().result()

    def _submit(self, number: int, group: list[Any], rows: Sequence[Any]) -> None:
        left = set(rows)
        for row in rows:
            self.futures.append(self.pool.submit(self._run, number, group, row, left))

    def _run(self, number: int, group: list[Any], row: Any, left: set[Any]) -> None:
        """Run one rollout of a group to its end; the last of them ends the group or begins its rest."""
        try:
            self.driver._go_on([row], self.sampling, self._require_going)
            with self.driver._lock:
                left.discard(row)
                whole = not left
            if whole:
                self._end(number, group)
        except BaseException as error:  # `generate` raises it again
            self.errors.append(error)
            self.ended.set()

    def _end(self, number: int, group: list[Any]) -> None:
        if rest := self.driver._branch(group, self.keys[number], self.sampling):
            self._submit(number, [*group, *rest], rest)
            return
        self.groups[number] = finish(group)
        if self.finished is not None:
            self.finished(number, self.groups[number])

    def _require_going(self) -> None:
        if self.ended.is_set():
            raise UserError("generation was aborted")
