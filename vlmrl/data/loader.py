"""Prompts of the rows that a sampler draws: seeded, sharded by rank, exactly resumable.

A draw is a function of its number, or for a sampler that learns, of the rewards of earlier batches at
a fixed lag; rank r of w takes the draws r, r + w, r + 2w ... So neither worker processes nor the
number of ranks change what comes next, and a bad row's place is taken by the next draw.
"""

from __future__ import annotations

import bisect
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from vlmrl import plugins
from vlmrl.data.quarantine import Found, Quarantine, Tally, TooLong, note_bad, read_sample
from vlmrl.data.sampler import AdaptiveSampler, Sampler, SeenRewards, SourceRows
from vlmrl.data.source import Source, known_rows, mean_rewards, token_diversities
from vlmrl.errors import UserError, about_row
from vlmrl.media.decode import DecodeJob, Outcome, decode_in_order
from vlmrl.schema import Prompt, PromptBatch, Rewards, Rollouts, Sample
from vlmrl.schema.media import Decoded, num_bytes
from vlmrl.system import distributed
from vlmrl.system.deadline_pool import DeadlinePool, TimedPool
from vlmrl.system.seeds import seed_of

# --------------------------------------------------------------------------------------------------
# An iterator's items, made by a thread before they are asked for.


T = TypeVar("T")


class Prefetch(Iterator[T]):
    """The items of `items`, made by a thread from the first `next` on. `stop` it.

    Up to `count` items and about `max_bytes` (`size` tells those of an item) wait to be taken; one
    always may. What `items` raises, `next` raises in its place, after the items before it.
    """

    def __init__(
        self, items: Iterator[T], count: int, max_bytes: int, size: Callable[[T], int]
    ) -> None:
        self._items, self._count, self._max_bytes, self._size = items, count, max_bytes, size
        self._waiting: deque[tuple[T, int]] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __next__(self) -> T:
        if self._thread is None:
            self._thread = _started(self._run)
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error)
            if not self._waiting:
                assert self._error is not None
                raise self._error
            item, size = self._waiting.popleft()
            self._held -= size
            self._changed.notify_all()
            return item

    def stop(self, interrupt: Callable[[], None]) -> None:
        """End the thread and drop what it made; `interrupt` ends what it may be waiting for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            interrupt()  # again and again: it may only be about to wait
            self._thread.join(0.1)
        self._waiting.clear()

    def _run(self) -> None:
        try:
            for item in self._items:
                size = self._size(item)
                with self._changed:
                    self._waiting.append((item, size))
                    self._held += size
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopped or self._has_room())
                    if self._stopped:
                        return
            raise StopIteration
        except BaseException as error:  # raised again by whoever wants the next item
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _has_room(self) -> bool:
        full = len(self._waiting) >= self._count or self._held >= self._max_bytes
        return not (self._waiting and full)


def _started(run: Callable[[], None]) -> threading.Thread:
    """Start a thread that runs `run`, with one torch thread for itself.

    An item's tensors are small; to share one out over threads that the trainer keeps busy takes far
    longer than the work itself.
    """
    import torch

    ready = threading.Event()

    def main() -> None:
        torch.get_num_threads()  # a thread's first look at the number would undo the next line
        torch.set_num_threads(1)  # of this thread, and of those that have not looked yet
        ready.set()
        run()

    threads = torch.get_num_threads()
    thread = threading.Thread(target=main, name="loader", daemon=True)
    thread.start()
    ready.wait()
    torch.set_num_threads(threads)  # for those others; the new thread keeps its one
    return thread


# --------------------------------------------------------------------------------------------------
# The draws of a run: a sampler's own, or for one that learns, those of the next batches.
#
# Invariant: batch b is chosen exactly when the rewards of batch b - lag have been learned, so that
# neither worker processes nor ranks change a draw. A plan holds `SPARE` times a batch's rows: the rest
# replaces bad ones.


SPARE = 2
"""Rows that are chosen for a batch, as a factor of its size."""
SEED_PURPOSE = 14
"""Part of the seed of rows that are drawn when all those chosen for a batch were bad."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """Row `row` of source number `source`."""

    source: int
    row: int


def places(prompts: Iterable[Prompt]) -> list[DrawnRow]:
    """Return the draws that prompts were made of, without those that are of no row."""
    return [DrawnRow(*prompt.place) for prompt in prompts if prompt.place is not None]


class DrawPlan:
    """Which rows come next, for batches of `size`; `lag` batches lie between a choice and its rewards."""

    def __init__(
        self, sampler: Sampler, sources: Sequence[SourceRows], seed: int, size: int, lag: int
    ) -> None:
        self.sampler, self._size, self._lag, self._seed = sampler, size, lag, seed
        if not sampler.follows_weights:  # such weights do not change: one of 0 has no rows
            nothing: dict[str, Any] = {"count": 0, "column": lambda _: np.empty(0, np.float32)}
            sources = [s if s.weight > 0 else replace(s, **nothing) for s in sources]
        self._state = sampler.begin(sources, seed)
        self._firsts = self._state.firsts
        self._learned = 0
        self._chosen: dict[int, np.ndarray] = {}
        self._new_bad: dict[int, np.ndarray] = {}
        self._bad = np.empty(0, np.int64)
        self._queue: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        if self.adapts:
            self._choose()

    @property
    def adapts(self) -> bool:
        """Return whether the sampler learns from rewards, so that a batch has draws of its own."""
        return isinstance(self.sampler, AdaptiveSampler)

    def place(self, number: int) -> DrawnRow:
        """Return the source and the row of a row's number."""
        source = bisect.bisect_right(self._firsts, number) - 1
        return DrawnRow(source, number - self._firsts[source])

    # -------------------------------------------------------------------------------------- draws

    @property
    def weights(self) -> list[list[Any]]:
        """The weights of the sources from a draw on, as JSON values; empty where they do not change."""
        return [[number, list(weights)] for number, weights in self._state.weights]

    @weights.setter
    def weights(self, changes: Sequence[Sequence[Any]]) -> None:
        # A new list: a thread may still draw by the old one.
        self._state.weights = [(number, tuple(weights)) for number, weights in changes]

    def reweigh(self, number: int, weights: Sequence[float]) -> bool:
        """Weigh the sources like this from draw `number` on; return whether that changes any draw."""
        if self.weights and self.weights[-1][1] == list(weights):
            return False
        self.weights = [*self.weights, [number, weights]]
        return True

    def stream(self, number: int, wait: bool) -> Iterator[int]:
        """Yield the rows of draw `number` and all after it, without those that replace bad ones.

        Of an adaptive sampler's batch they are `size`; `wait` for those that are not chosen yet.
        """
        if not self.adapts:
            return self.sampler.draws(self._state, number)
        self._queue = queue.SimpleQueue()
        for batch in range(number // self._size, self._learned + self._lag):
            self._queue.put(self._chosen[batch])
        return self._from(self._queue, wait)

    def end(self) -> None:
        """End a stream that waits."""
        self._queue.put(None)

    def spares(self, batch: int) -> Iterator[int]:
        """Yield the rows that replace the bad ones of a batch of an adaptive sampler, without end."""
        yield from self._chosen[batch][self._size :].tolist()
        random = np.random.RandomState(seed_of(self._seed, SEED_PURPOSE, batch) % 2**32)
        while True:
            yield int(random.randint(self._state.count))

    def _from(self, chosen: queue.SimpleQueue[np.ndarray | None], wait: bool) -> Iterator[int]:
        while (rows := chosen.get(block=wait)) is not None:
            yield from rows[: self._size].tolist()

    def _choose(self) -> None:
        assert isinstance(self.sampler, AdaptiveSampler)
        wanted = SPARE * self._size
        for batch in range(self._learned + len(self._chosen), self._learned + self._lag):
            flying = [rows[: self._size] for rows in self._chosen.values()]
            avoid = np.concatenate([self._bad, *flying])
            rows = self.sampler.choose(self._state, batch, wanted, avoid)
            self._chosen[batch] = np.resize(rows, wanted)  # repeats them where there are too few
            self._queue.put(self._chosen[batch])

    # ------------------------------------------------------------------------------------- rewards

    def note(self, batch: int, tried: int, good: Sequence[DrawnRow]) -> None:
        """Note which of the first `tried` rows chosen for a batch became its prompts; others are bad."""
        self._new_bad[batch] = np.setdiff1d(self._chosen[batch][:tried], self._numbers(good))

    def learn(
        self,
        draws: Sequence[DrawnRow],
        rewards: Sequence[float | None],
        diversity: Sequence[float] | None = None,
    ) -> Mapping[str, float]:
        """Take in the mean reward of each row of the next batch (None: it has none); return its curves."""
        known = [source.count > 0 for source in self._state.sources]
        diverse = [0.0] * len(draws) if diversity is None else diversity
        pairs = [x for x in zip(draws, rewards, diverse, strict=True) if known[x[0].source]]
        numbers = self._numbers([draw for draw, _, _ in pairs])
        metrics = self.sampler.metrics(self._state, numbers)
        if isinstance(self.sampler, AdaptiveSampler):
            rated = [i for i, (_, reward, _) in enumerate(pairs) if reward is not None]
            means = np.array([pairs[i][1] for i in rated], np.float64)
            shares = None if diversity is None else np.array([pairs[i][2] for i in rated])
            self.sampler.learn(self._state, SeenRewards(numbers[rated], means, shares))
            del self._chosen[self._learned]
            self._bad = np.union1d(self._bad, self._new_bad.pop(self._learned))
            self._learned += 1
            self._choose()
        return metrics

    def _numbers(self, draws: Sequence[DrawnRow]) -> np.ndarray:
        return np.array([self._firsts[draw.source] + draw.row for draw in draws], np.int64)

    # ---------------------------------------------------------------------------------- checkpoint

    @property
    def scalars(self) -> dict[str, Any]:
        """The small part of what was learned, as JSON values; empty if the sampler does not learn."""
        return {"learned": self._learned, **self._state.scalars} if self.adapts else {}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What was learned of each row, `chosen` [lag, SPARE * size] and `bad` rows; empty likewise."""
        if not self.adapts:
            return {}
        chosen = np.stack(list(self._chosen.values()))
        return {**self._state.arrays, "chosen": chosen, "bad": self._bad}

    def restore(self, scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Go on where `scalars` and `arrays` were taken.

        Raises:
            UserError: they are not those of this sampler with this size and lag.
        """
        now = {name: array.shape for name, array in self.arrays.items() if name != "bad"}
        was = {name: array.shape for name, array in arrays.items() if name != "bad"}
        if now != was or self.scalars.keys() != scalars.keys():
            raise UserError(
                f"resume: expected the state of sampler {type(self.sampler).__name__} with "
                f"data.sampler.lag {self._lag}: arrays {now}, got {was}"
            )
        if not self.adapts:
            return
        self._learned = int(scalars["learned"])
        self._state.scalars = {k: v for k, v in scalars.items() if k != "learned"}
        self._state.arrays = {k: v for k, v in arrays.items() if k not in ("chosen", "bad")}
        self._chosen = dict(enumerate(arrays["chosen"], self._learned))
        self._bad, self._new_bad = arrays["bad"], {}


# --------------------------------------------------------------------------------------------------


Made = tuple[int, Prompt | str]
"""The number of a draw, and its prompt or why there is none."""

Make = Callable[[Sample, list[Decoded]], Prompt]
"""Turns a sample and its media into a prompt; a UserError from it means that the row is bad."""

LEAD = 4
"""Batches that are drawn ahead of use: two are being decoded, and two are waiting as prompts."""
MIXTURE = "Mixture()"
"""The sampler of states that name none."""


class Loader:
    """Batches of prompts without end. Use as a context manager, or `close` it, if it has workers.

    `max_prompt_tokens` bounds a prompt's length; `quarantine_limit` is the share of bad rows that
    stops the run. `weights` are those of the sources by progress, if they change over training.
    `sampler` says which rows are drawn (None: `mixture`); one that learns chooses batch b when `learn`
    was told the rewards of batch b - `lag`. With `workers` processes that decode (a pool
    that is used again after its `close`) a thread makes the prompts ahead of use, holding about
    `prefetch_mb` MiB of decoded media and as much of prompts (0: all in line, when a batch is asked
    for). The prompts and the state are the same with and without, and the state is that of what was
    handed out. `make` must then be safe to call in a thread.

    With several ranks (`gather` returns what each of them gave) all get the same batches, the ones
    that one rank would get; but each holds the media of its own prompts only (`Prompt.home`).
    """

    def __init__(
        self,
        sources: Sequence[Source],
        make: Make,
        prompts_per_batch: int,
        *,
        sampler: Sampler | None = None,
        lag: int = LEAD,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        gather: Callable[[Any], list[Any]] = distributed.gather,
        quarantine: Quarantine | None = None,
        quarantine_limit: float = 0.05,
        max_prompt_tokens: int | None = None,
        workers: int = 0,
        prefetch_mb: int = 256,
        weights: Callable[[float], Sequence[float]] | None = None,
        may_differ: Collection[str] = (),
    ) -> None:
        self.sources = tuple(sources)
        self._may_differ = may_differ
        self._weights = weights
        self.quarantine = Quarantine() if quarantine is None else quarantine
        self._make, self._making = make, threading.Lock()
        self._size = prompts_per_batch
        self._seed, self._rank, self._world, self._gather = seed, rank, world, gather
        self._max_tokens = max_prompt_tokens
        self._prefetch = prefetch_mb * 2**20
        self._pool = DeadlinePool(workers) if workers else None
        rows = [known_rows(source) for source in self.sources]
        sampler = sampler or plugins.build("sampler", "mixture")
        self.plan = DrawPlan(sampler, rows, seed, prompts_per_batch, lag)
        self._tally = Tally(quarantine_limit, sum(len(source.rows) for source in self.sources))
        self._drawn = 0
        self._stream = self._ahead()

    def next(self, size: int | None = None, progress: float = 0.0) -> PromptBatch:
        """Return the next batch, always full: the next row takes the place of a bad one.

        It has `size` prompts (None: the loader's own number), for the step at this progress.

        Raises:
            UserError: too many rows are bad.
        """
        size = size or self._size
        if self._weights and self.plan.reweigh(self._drawn, self._weights(progress)):
            self._restart()
        begin, stream = self._drawn, self._stream
        prompts = list(self._round(stream, size))
        if self.plan.adapts and len(prompts) < size:
            spares = self.plan.spares(begin // size)
            stream = self._prompts(spares, self._drawn, None, 1)
        while len(prompts) < size:
            prompts += self._round(stream, size - len(prompts))
        if self.plan.adapts:
            self.plan.note(begin // size, self._drawn - begin, places(prompts))
            self._drawn = begin + size
        return PromptBatch(tuple(prompts), cursor=self.state)

    @property
    def state(self) -> dict[str, Any]:
        """Where the next batch begins, as plain JSON values."""
        return {
            "draws": self._drawn,
            "seen": self._tally.seen,
            "bad": self._tally.bad,
            **({"weights": self.plan.weights} if self._weights else {}),
            **self._fixed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; what a sampler had learned is given to `plan` before.

        Raises:
            UserError: the sources, the seed or the sampler are not those of the state, and may not differ.
        """
        for key, now in self._fixed.items():
            was = state.get(key, MIXTURE)
            if was != now and key not in self._may_differ:
                raise UserError(f"resume: the data have changed: {key} was {was}, now is {now}")
        self._tally.seen, self._tally.bad = state["seen"], state["bad"]
        self._drawn = state["draws"]
        self.plan.weights = state.get("weights", [])
        self._restart()

    def learn(self, rollouts: Rollouts, rewards: Rewards) -> dict[str, float]:
        """Tell the sampler the rewards of the next batch that was handed out; return its curves."""
        sampler, means = self.plan.sampler, mean_rewards(rollouts, rewards)
        diversity = token_diversities(rollouts) if sampler.reads_completions else None
        return dict(self.plan.learn(places(rollouts.batch.prompts), means, diversity))

    def recall(
        self, places: Sequence[tuple[int, int]], homes: Sequence[int] | None = None
    ) -> list[Prompt | None]:
        """Return the prompts of these rows, each (source, row), made in line; None for a bad row.

        What is drawn next stays as it is. `homes` are the prompts' ranks; None: dealt in turn.
        """
        homes = [n % self._world for n in range(len(places))] if homes is None else homes
        own = [n for n, home in enumerate(homes) if home == self._rank]
        rows = (self._job(DrawnRow(*places[n])) for n in own)
        stream = map(self._tried, decode_in_order(rows, None, 1, 0))
        made: Iterable[Made] = self._made(stream, own)
        results = dict(self._exchanged(made) if self._world > 1 else made)
        return [p if isinstance(p := results[n], Prompt) else None for n in range(len(places))]

    def _restart(self) -> None:
        """Draw anew from here on; what was made ahead is lost."""
        self.close()
        self._stream = self._ahead()

    def close(self) -> None:
        """End the thread and the worker processes, at once."""
        if self._pool is not None:
            if isinstance(self._stream, Prefetch):
                self._stream.stop(self._end)
            self._pool.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _fixed(self) -> dict[str, Any]:
        """What must be the same at resume for the state to mean the same rows."""
        return {
            "sources": [[s.name, s.split, len(s.rows), s.weight] for s in self.sources],
            "seed": self._seed,
            "sampler": repr(self.plan.sampler),
        }

    def _ahead(self) -> Iterator[tuple[DrawnRow, Found]]:
        """All draws of this rank from here on, with what is made of them; nothing is noted yet."""
        ahead = 2 * max(1, self._size // self._world)
        rows = self.plan.stream(self._drawn, wait=self._pool is not None)
        made = self._prompts(rows, self._drawn, self._pool, ahead)
        return Prefetch(made, ahead, self._prefetch, _bytes) if self._pool else made

    def _prompts(
        self, rows: Iterator[int], number: int, pool: TimedPool | None, ahead: int
    ) -> Iterator[tuple[DrawnRow, Found]]:
        """Those of this rank among the rows of draw `number` and all after it."""
        draws = enumerate(map(self.plan.place, rows), number)
        jobs = (self._job(draw) for number, draw in draws if self._is_mine(number))
        return map(self._tried, decode_in_order(jobs, pool, ahead, self._prefetch))

    def _tried(self, decoded: tuple[DecodeJob[DrawnRow], Outcome | None]) -> tuple[DrawnRow, Found]:
        job, media = decoded
        with self._making:  # one thread may replace bad rows while the other works ahead
            return job.key, _tried(job, media, self._make, self._max_tokens)

    def _end(self) -> None:
        """End what the thread may wait for."""
        assert self._pool is not None
        self._pool.close()
        self.plan.end()

    def _is_mine(self, number: int) -> bool:
        return number % self._world == self._rank

    def _job(self, draw: DrawnRow) -> DecodeJob[DrawnRow]:
        return _job(draw, self.sources[draw.source], draw.row, self.quarantine)

    def _round(self, stream: Iterator[tuple[DrawnRow, Found]], count: int) -> Iterator[Prompt]:
        """Yield the prompts of the next `count` draws, without the bad rows."""
        numbers = range(self._drawn, self._drawn + count)
        made = self._made(stream, [number for number in numbers if self._is_mine(number)])
        if self._world > 1:
            made = self._exchanged(made)
        for number, result in made:
            self._drawn = number + 1
            if isinstance(result, Prompt):
                self._tally.count()
                yield result
                continue
            self._tally.count(result)
            if all(len(self.quarantine.rows(s)) >= len(s.rows) for s in self.sources):
                raise UserError(f"no row of the training data can be used; the last: {result}")

    def _made(
        self, stream: Iterator[tuple[DrawnRow, Found]], numbers: Iterable[int]
    ) -> Iterator[Made]:
        for number in numbers:
            draw, result = next(stream)
            made = note_bad(self.sources[draw.source], draw.row, result, self.quarantine)
            origin = (draw.source, draw.row)
            yield number, replace(made, place=origin) if isinstance(made, Prompt) else made

    def _exchanged(self, made: Iterable[Made]) -> Iterator[Made]:
        """Exchange what the ranks made, in the order of the draws, without the media of others."""
        own = {n: replace(m, home=self._rank) if isinstance(m, Prompt) else m for n, m in made}
        shared = {n: m.without_media() if isinstance(m, Prompt) else m for n, m in own.items()}
        merged: dict[int, Prompt | str] = {}
        for share, bad in self._gather((shared, self.quarantine.take_new())):
            merged |= share
            self.quarantine.learn(bad)
        yield from sorted((merged | own).items())


def eval_batches(
    sources: Sequence[Source],
    make: Make,
    size: int,
    *,
    rank: int = 0,
    world: int = 1,
    quarantine: Quarantine | None = None,
    quarantine_limit: float = 0.05,
    max_prompt_tokens: int | None = None,
) -> Iterator[PromptBatch]:
    """Yield every row of the sources once, in order, `size` prompts a batch (the last may be smaller).

    Rank r of w gets the rows r, r + w, r + 2w ... of all sources laid end to end. Bad rows are left
    out and noted.

    Raises:
        UserError: too many rows are bad.
    """
    quarantine = Quarantine() if quarantine is None else quarantine
    places = [(source, row) for source in sources for row in range(len(source.rows))][rank::world]
    tally = Tally(quarantine_limit, len(places))
    prompts: list[Prompt] = []
    for source, row in places:
        ((job, media),) = decode_in_order([_job(None, source, row, quarantine)], None, 1, 0)
        result = _tried(job, media, make, max_prompt_tokens)
        made = note_bad(source, row, result, quarantine)
        if isinstance(made, str):
            tally.count(made)
            continue
        tally.count()
        prompts.append(made)
        if len(prompts) == size:
            yield PromptBatch(tuple(prompts))
            prompts = []
    if prompts:
        yield PromptBatch(tuple(prompts))


def _job(key: T, source: Source, row: int, quarantine: Quarantine) -> DecodeJob[T]:
    return DecodeJob(key, read_sample(source, row, quarantine), source.access, source.reading)


def _tried(
    job: DecodeJob[Any], decoded: Outcome | None, make: Make, max_tokens: int | None
) -> Found:
    if not isinstance(decoded, list):
        return decoded
    assert isinstance(job.sample, Sample)
    try:
        with about_row(f"sample {job.sample.id!r:.200}"):
            prompt = make(job.sample, decoded)
    except UserError as error:
        return error
    length = len(prompt.encoded.ids)
    if max_tokens is not None and length > max_tokens:
        return TooLong(f"prompt of {length} tokens; data.max_prompt_tokens is {max_tokens}")
    return prompt


def _bytes(made: tuple[DrawnRow, Found]) -> int:
    """Return the bytes that a prompt with its media and tensors takes."""
    result = made[1]
    if not isinstance(result, Prompt):
        return 0
    played = result.demonstrated
    encoded = [result.encoded, *([played.suffix.encoded] if played and played.suffix else [])]
    tensors = sum(tensor.nbytes for part in encoded for tensor in part.tensors.values())
    shown = [medium for segment in played.segments for medium in segment.media] if played else []
    return tensors + sum(num_bytes(medium) for medium in (*result.media, *shown))
