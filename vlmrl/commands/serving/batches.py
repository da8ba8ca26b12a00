"""Requests that wait together are answered in one pass of the model, on one thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from vlmrl.commands.serving.asked_model import ServedModel
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.schema import Completion, Prompt, Sample
from vlmrl.system.seeds import seed_of

__all__ = ["Answers", "Batches"]


class Answers(Protocol):
    """A model that answers prompts, several in one pass."""

    rates: ClassVar[bool]
    """Whether it rates a turn of the assistant's, which ends the conversation, instead of adding one."""

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return the prompt of a sample.

        Raises:
            UserError: the model cannot be shown it.
        """

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return the completions of each prompt."""

    def close(self) -> None:
        """Free what it holds."""


T = TypeVar("T")


@dataclass
class _Waiting:
    """A request on its way: its completions arrive in `done`."""

    sample: Sample
    sampling: Sampling
    done: Future[tuple[Prompt, tuple[Completion, ...]]] = field(default_factory=Future)


@dataclass
class _Call:
    """What is done with the model between two passes: its result arrives in `done`."""

    work: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.work())
            except Exception as error:
                self.done.set_exception(error)


class Batches:
    """Answers requests in the order in which they come, those of one kind up to `size` at a time.

    What a request is answered depends on its own seed, not on those that it shares a pass with.
    """

    def __init__(self, model: Answers, size: int) -> None:
        self._model, self._size, self._closed = model, size, False
        self.rates = model.rates
        self._queue: queue.SimpleQueue[_Waiting | _Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def ask(
        self, sample: Sample, sampling: Sampling
    ) -> Future[tuple[Prompt, tuple[Completion, ...]]]:
        """Return the future of a request's prompt and completions; a bad medium is its exception."""
        waiting = _Waiting(sample, sampling)
        self._queue.put(waiting)
        return waiting.done

    def call(self, work: Callable[[ServedModel], T]) -> Future[T]:
        """Return the future of what `work` makes of the model, on the thread that it has to itself.

        Raises:
            UserError: the model writes nothing, so it has no log-probs.
        """
        model = self._model
        if not isinstance(model, ServedModel):
            raise UserError("this model writes nothing: it cannot grade a text")
        waiting = _Call(lambda: work(model))
        self._queue.put(waiting)
        return waiting.done

    def close(self) -> None:
        """Finish the pass in hand, refuse what waits, and stop the model."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._model.close()

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            kinds: dict[Sampling, list[_Waiting]] = {}
            for each in waiting:
                if each is None:
                    continue
                if self._closed:
                    each.done.cancel()
                elif isinstance(each, _Call):
                    each.run()
                else:
                    kinds.setdefault(replace(each.sampling, seed=0), []).append(each)
            if self._closed:
                return
            for alike in kinds.values():
                for at in range(0, len(alike), self._size):
                    part = alike[at : at + self._size]
                    self._answer([w for w in part if w.done.set_running_or_notify_cancel()])

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        ready: list[tuple[_Waiting, Prompt]] = []
        for waiting in batch:
            try:
                ready.append((waiting, self._model.prompt(waiting.sample, Access())))
            except Exception as error:
                waiting.done.set_exception(error)
        if not ready:
            return
        first = ready[0][0].sampling
        keys = tuple(
            tuple(seed_of(waiting.sampling.seed, g) for g in range(first.n)) for waiting, _ in ready
        )
        try:
            found = self._model.answer([p for _, p in ready], replace(first, keys=keys))
        except Exception as error:
            for waiting, _ in ready:
                waiting.done.set_exception(error)
            return
        for (waiting, prompt), completions in zip(ready, found, strict=True):
            waiting.done.set_result((prompt, completions))
