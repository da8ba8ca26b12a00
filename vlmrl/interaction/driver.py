"""An engine around an engine: turns of the policy with observations between them.

A turn is one more call of the inner engine, with a longer prompt and one completion. What is drawn
depends on the seed, the prompt, the number of the completion and of the turn, and the place of the token,
never on the company. Every limit is checked before an observation is appended.

Around an engine that generates in several threads, every rollout has a thread from its second turn on: a slow
tool holds up its own rollout. What is drawn is the same, whoever waits for whom.
"""

from __future__ import annotations

import math
import operator
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

from vlmrl.engines.base import (
    ConcurrentRunningEngine,
    Engine,
    Finished,
    RunningEngine,
    Sampling,
    ServedPolicy,
)
from vlmrl.errors import UserError
from vlmrl.interaction.chunks import Chunking, join
from vlmrl.interaction.tool import Shown, View
from vlmrl.interaction.tools import AskedCall, PolicyTurn, Runner, ToolOutcome, World, parse_calls
from vlmrl.interaction.trail import Trail
from vlmrl.models.base import Family
from vlmrl.schema import (
    Call,
    Completion,
    FinishReason,
    Prompt,
    PromptBatch,
    Rollouts,
    Segment,
    Space,
)
from vlmrl.schema.media import PilImage
from vlmrl.system.seeds import seed_of, uniform

# --------------------------------------------------------------------------------------------------
# Where rollouts branch: at turns in which the policy grew unsure of what it had just been shown.
#
# Source: Dong et al. 2025, "Agentic Reinforced Policy Optimization" (ARPO), arXiv 2507.19849, section 3.1.
# Of a group, `initial` rollouts begin at the prompt. A turn of theirs that follows an observation is
# branched off with probability `chance + per_entropy * rise`, where the rise is the entropy of its first
# tokens less that of the first turn's, over the log of the vocabulary. What no turn takes begins at the
# prompt.
# Tokens that rollouts share belong to each of them, with its own advantage (the paper's soft setting).
#
# Differs: the entropy of a token is estimated by its -log p, of which it is the mean, because engines return
# nothing else; there it is a sum over the ten likeliest tokens. Their code branches off behind the turn
# that it
# looks at. Branches do not branch again, and are drawn when the initial rollouts have ended: they depend on
# nothing but their own group, whichever rollout ends first.


@dataclass(frozen=True, slots=True)
class Branching:
    """How many rollouts of a group begin at the prompt, and how the others branch off them."""

    initial: int
    chance: float = 0.5
    per_entropy: float = 0.2
    tokens: int = 20


def choose_turns(
    branching: Branching,
    rollouts: Sequence[Sequence[Segment]],
    count: int,
    vocabulary: int,
    key: Sequence[int],
) -> list[tuple[int, int]]:
    """Return up to `count` places (rollout, turn) to branch off, each once, earlier turns first.

    `rollouts` are the policy's turns of those that began at the prompt. A place is drawn by `key`, its
    rollout and its turn alone.
    """
    turns_chosen: list[tuple[int, int]] = []
    for turn in range(1, max(map(len, rollouts), default=0)):
        for number, turns in enumerate(rollouts):
            if len(turns_chosen) == count:
                return turns_chosen
            if turn < len(turns):
                higher = rise(turns, turn, branching.tokens, vocabulary)
                chance = branching.chance + branching.per_entropy * higher
                drawn = uniform(f"branch {[*key, number, turn]}")
                turns_chosen += [(number, turn)] if drawn < chance else []
    return turns_chosen


def rise(turns: Sequence[Segment], turn: int, tokens: int, vocabulary: int) -> float:
    """Return the entropy of a turn's first tokens, summed, less the first turn's, over log(vocabulary)."""
    first, now = (-math.fsum(turns[i].logprobs[:tokens]) for i in (0, turn))
    return (now - first) / math.log(vocabulary)


# --------------------------------------------------------------------------------------------------
# Rollouts of several turns, each of which goes on as soon as its tools have answered.


WINDOW = 200
"""Calls over which the share of faults is taken."""
MAX_THREADS = 256
"""Rollouts of one call that go on at a time, each in a thread; others wait."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What a rollout of several turns may take; tokens of one turn are `Sampling.max_tokens`."""

    max_turns: int = 4
    """Turns of the policy; on the last one no tool runs."""
    max_tokens: int = 2048
    """Tokens that the policy writes in all turns."""
    max_length: int = 8192
    """Tokens of the prompt and all that follows it."""
    max_images: int = 8
    """Images, videos and audios that tools show."""
    max_seconds: float = 120.0
    """Seconds that tools take for one rollout."""
    fault_limit: float = 0.5
    """Stop when more than this share of the last 200 calls failed."""


@dataclass(eq=False)
class _Row:
    """One rollout while it is being made."""

    runner: Runner | None
    """None: its source has no tools and no environment."""
    trail: Trail
    view: View
    key: tuple[int, ...]
    single: bool = False
    """Whether it is a single generation."""
    world: World | None = None
    """Where it acts, if its source has an environment."""
    last: Completion | None = None
    """The last turn; None: it has written none of its own yet."""
    seconds: float = 0.0
    reason: FinishReason | None = None
    """Why it ended; None: it goes on."""
    starts: list[_Row] = field(default_factory=list)
    """What it was at the start of its second turn, its third one ..., for others to go on from."""

    def write(self, completion: Completion) -> None:
        """Append a turn of the policy; in a world it has earned nothing yet."""
        self.last = completion
        if not self.single:
            self.trail = self.trail.write(completion)
        if self.world is not None:
            self.trail = self.trail.note(reward=0.0, metrics={"done": 0.0})

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.trail.segments if s.of_policy)


class Driver(Engine):
    """The inner engine, with tools for the prompts of some sources; others have a single turn."""

    def __init__(
        self,
        inner: Engine,
        open_runner: Mapping[str, Callable[[Space], Runner]],
        limits: TurnLimits = TurnLimits(),
        branching: Branching | None = None,
        chunking: Chunking | None = None,
    ) -> None:
        """Open tools or worlds by source, each for a policy that writes coordinates in a space.

        `branching` says how rollouts of `Sampling.branch` share their first turns; None: none does.
        `chunking`: all completions are written in chunks; then no source has tools.
        """
        self.inner, self.open_runner = inner, open_runner
        self.limits, self.branching, self.chunking = limits, branching, chunking
        # The keys are the driver's own (`keys_of`), and a trail keeps no experts.
        self.capabilities = replace(inner.capabilities, keyed=True, placed=False, routes=False)

    def start(self, policy: ServedPolicy) -> RunningDriver:
        """Start the inner engine and the tools.

        Raises:
            UserError: the model's chat template cannot show what a tool returns.
        """
        if self.open_runner:
            policy.family.reply(policy.processor, ["ready"])  # refused here, not at every call
        return (ConcurrentRunningDriver if self.capabilities.concurrent else RunningDriver)(
            self, policy
        )


class RunningDriver(RunningEngine):
    """The inner engine while it runs, and the tools of the sources that act."""

    def __init__(self, driver: Driver, policy: ServedPolicy) -> None:
        super().__init__(driver.capabilities)
        self.driver, self.limits, self.branching = driver, driver.limits, driver.branching
        self.chunking = driver.chunking
        self.inner = driver.inner.start(policy)
        self._policy = policy
        self._runners: dict[str, Runner] = {}
        self._faults: deque[bool] = deque(maxlen=WINDOW)
        try:
            for source, opened in driver.open_runner.items():
                self._runners[source] = opened(policy.family.space)
        except BaseException:
            self.close()
            raise

    def sync(self, policy: ServedPolicy) -> None:
        """Take the policy's new weights."""
        self._policy = policy
        self.inner.sync(policy)

    def rest(self) -> None:
        """Let the inner engine rest."""
        self.inner.rest()

    def close(self) -> None:
        """End the inner engine and the tools."""
        self.inner.close()
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()

    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """Return `sampling.n` completions for every prompt, of several turns where its source has tools.

        Raises:
            UserError: too many calls failed.
        """
        keys = keys_of(batch, sampling)
        first = self.inner.generate(batch, with_keys(self._first(sampling), keys))
        begun = zip(batch.prompts, first.completions, keys, strict=True)
        groups = [self._begin(prompt, completions, own) for prompt, completions, own in begun]
        self._go_on([row for group in groups for row in group], sampling)
        for group, own in zip(groups, keys, strict=True):
            group += self._branch(group, own, sampling)
        self._go_on([row for group in groups for row in group], sampling)
        return replace(first, batch=batch, completions=tuple(map(self._finish, groups)))

    def _first(self, sampling: Sampling) -> Sampling:
        """Return how the rollouts that begin at the prompt are sampled: all of them, or the initial ones."""
        if self.branching is None or not sampling.branch:
            return sampling
        return replace(sampling, n=min(self.branching.initial, sampling.n))

    def _go_on(
        self,
        live: Sequence[_Row],
        sampling: Sampling,
        require_going: Callable[[], object] = lambda: None,
    ) -> None:
        """Run rollouts to their ends; `require_going` raises if there is to be no further turn."""
        while live := self._observe(live, sampling):
            require_going()
            self._continue(live, sampling)

    def _begin(
        self, prompt: Prompt, completions: Sequence[Completion], keys: Sequence[tuple[int, ...]]
    ) -> list[_Row]:
        """Return rollouts after their first turns; there may be more keys than those."""
        rows = [self._start(prompt, key) for key in keys[: len(completions)]]
        for row, completion in zip(rows, completions, strict=True):
            row.write(completion)
        return rows

    def _start(self, prompt: Prompt, key: tuple[int, ...]) -> _Row:
        """Return a rollout before its first turn."""
        policy, runner = self._policy, self._runners.get(prompt.sample.source)
        trail = Trail(policy.family, policy.processor, prompt)
        if runner is None:
            return _Row(runner, trail, View(), key, single=self.chunking is None)
        view = first_view(policy.family, policy.processor, prompt)
        return _Row(runner, trail, view, key, world=runner.begin(prompt.sample, key[0]))

    def _branch(
        self, group: Sequence[_Row], keys: Sequence[tuple[int, ...]], sampling: Sampling
    ) -> list[_Row]:
        """Return the rest of a group of ended rollouts: branches of them, then others from the prompt."""
        left = keys[len(group) :]
        if not left:
            return []
        assert self.branching is not None
        turns = [[s for s in row.trail.segments if s.of_policy] for row in group]
        vocabulary, key = len(self._policy.tokenizer), (sampling.seed, *keys[0])
        places = choose_turns(self.branching, turns, len(left), vocabulary, key)
        starts = [group[number].starts[turn - 1] for number, turn in places]
        branches = [
            replace(start, key=own, trail=start.trail.fork())
            for start, own in zip(starts, left, strict=False)
        ]
        prompt = group[0].trail.prompt
        return [*branches, *(self._start(prompt, own) for own in left[len(branches) :])]

    def _observe(self, live: Sequence[_Row], sampling: Sampling) -> list[_Row]:
        """Run the tools that the last turns ask for; return the rollouts that go on."""
        asking: list[tuple[_Row, Runner, PolicyTurn]] = []
        live = [row for row in live if row.reason is None]
        for row in live:
            if row.last is not None and self.chunking is not None:
                row.reason = self._carry_over(row, row.last, self.chunking, sampling)
            elif row.last is not None:
                calls, row.reason = self._asked(row, row.last, sampling)
                if row.reason is None and row.runner is not None:
                    turn = PolicyTurn(calls, row.view, row.last.text, row.world)
                    asking.append((row, row.runner, turn))
        for runner in {id(runner): runner for _, runner, _ in asking}.values():
            own = [(row, turn) for row, its, turn in asking if its is runner]
            outcomes = runner.run_all([turn for _, turn in own])
            for (row, _), outcome in zip(own, outcomes, strict=True):
                row.reason = self._show(row, outcome, sampling)
                self._count(row.trail.last_calls)
        for row in live:
            if row.reason is not None and row.world is not None and row.runner is not None:
                row.runner.leave(row.world)
        return [row for row in live if row.reason is None]

    def _carry_over(
        self, row: _Row, last: Completion, chunking: Chunking, sampling: Sampling
    ) -> FinishReason | None:
        """Let the next chunk begin, if there is one; return why the rollout ends, if it does."""
        if last.finish_reason != "length":
            return last.finish_reason
        if not chunking.goes_on(row.trail.num_turns, sampling.max_tokens):
            return "length"
        assert row.trail.encoded is not None
        kept = chunking.kept(row.trail.encoded.ids)
        row.trail = row.trail.begin_anew(kept, self._policy.tokenizer.decode(kept))
        return None

    def _asked(
        self, row: _Row, last: Completion, sampling: Sampling
    ) -> tuple[tuple[AskedCall, ...], FinishReason | None]:
        """Return the calls of the last turn, and why the rollout ends nevertheless."""
        if row.runner is None or last.finish_reason != "stop":
            return (), last.finish_reason
        calls = parse_calls(last.text)
        acts = bool(calls) or row.runner.takes_text
        # Behind another stop token than the end of turn the chat template writes nothing.
        if not acts or last.token_ids[-1] != self._policy.stop_ids[0]:
            return (), "stop"
        # What the last turn does in a world counts; what a tool would return is not seen any more.
        return calls, None if row.world is not None else self._reached(row, sampling)

    def _reached(self, row: _Row, sampling: Sampling) -> FinishReason | None:
        """Return the limit that leaves no room for another turn, if one does."""
        if row.trail.num_turns >= self.limits.max_turns:
            return "turns"
        if row.num_tokens + sampling.max_tokens > self.limits.max_tokens:
            return "budget"
        return None

    def _show(self, row: _Row, outcome: ToolOutcome, sampling: Sampling) -> FinishReason | None:
        """Append what the tools returned, if it fits; return why the rollout ends, if it does."""
        row.seconds += sum(call.seconds for call in outcome.calls)
        row.trail = row.trail.note(calls=outcome.calls)
        if (step := outcome.step) is not None:
            row.world = step.world
        if outcome.fault is not None:
            return "abort"
        if step is not None:
            metrics = {**step.metrics, "done": float(step.done)}
            row.trail = row.trail.note(reward=step.reward, metrics=metrics)
            if step.done:
                return "stop"
        if (reached := self._reached(row, sampling)) is not None:
            return reached
        try:
            segment, encoded = row.trail.encode_observation(outcome.parts)
        except UserError as error:  # what the family refuses is the tool's failure
            failed = [replace(call, outcome="fault", note=str(error)) for call in outcome.calls]
            row.trail = row.trail.note(calls=tuple(failed))
            return "abort"
        limits, policy = self.limits, self._policy
        longer = row.trail.length + len(encoded.ids) + sampling.max_tokens
        media = len(row.trail.media) + len(outcome.shown)
        most = (limits.max_length, limits.max_images, limits.max_seconds)
        if any(map(operator.gt, (longer, media, row.seconds), most)):
            return "budget"
        after = row.trail.observe(segment, encoded)
        try:
            self.driver.inner.require_room(policy, after.next_prompt(), sampling.max_tokens)
        except UserError:
            return "budget"
        frames = [policy.family.frame(policy.processor, item.medium) for item in outcome.shown]
        row.view = row.view.then(outcome.shown, frames)
        row.trail = after
        if self._first(sampling).n < sampling.n:
            row.starts.append(replace(row, last=None, starts=[]))
        return None

    def _continue(self, live: Sequence[_Row], sampling: Sampling) -> None:
        """Generate the next turn of each rollout."""
        batch = PromptBatch(tuple(row.trail.next_prompt() for row in live))
        seeds = tuple((_seed(sampling, row.key, row.trail.num_turns),) for row in live)
        most = sampling.max_tokens - (self.chunking.carry if self.chunking else 0)
        now = replace(sampling, n=1, max_tokens=most, keys=seeds)
        turns = self.inner.generate(batch, now).completions
        for row, (completion,) in zip(live, turns, strict=True):
            row.write(completion)

    def _finish(self, group: Sequence[_Row]) -> tuple[Completion, ...]:
        """Return the completions of rollouts that have ended."""
        completions = []
        for row in group:
            assert row.last is not None
            reason = row.reason or "stop"
            if row.single:
                completions.append(row.last)
            elif self.chunking is not None:
                completions.append(join(self._policy, row.trail, reason))
            else:
                completions.append(row.trail.finish(row.last, reason))
        return tuple(completions)

    def _count(self, calls: Sequence[Call]) -> None:
        self._faults.extend(call.outcome == "fault" for call in calls)
        share = sum(self._faults) / WINDOW
        if share > self.limits.fault_limit:
            failed = next(call for call in reversed(calls) if call.outcome == "fault")
            raise UserError(
                f"{sum(self._faults)} of the last {WINDOW} calls of tools failed, the limit is "
                f"{self.limits.fault_limit:.0%}; the last: {failed.name}: {failed.note}"
            )


class ConcurrentRunningDriver(RunningDriver, ConcurrentRunningEngine):
    """The same around an engine that generates in several threads."""

    def __init__(self, driver: Driver, policy: ServedPolicy) -> None:
        super().__init__(driver, policy)
        self._lock = threading.RLock()
        self._calls: set[_Generation] = set()

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Generate as in `RunningDriver`; `finished` is given every group as soon as it is whole."""
        keys = keys_of(batch, sampling)
        with ThreadPoolExecutor(min(MAX_THREADS, len(batch) * sampling.n)) as pool:
            call = _Generation(self, batch, sampling, keys, finished, pool)
            self._calls.add(call)
            try:
                first = cast(ConcurrentRunningEngine, self.inner).generate(
                    batch, with_keys(self._first(sampling), keys), call.begin
                )
                call.wait()
            except BaseException:
                call.ended.set()
                raise
            finally:
                self._calls.discard(call)
        if call.errors:
            raise call.errors[0]
        whole = tuple(call.groups[number] for number in range(len(batch)))
        return replace(first, batch=batch, completions=whole)

    def abort(self) -> None:
        """Make every running call of `generate` raise soon."""
        for call in list(self._calls):
            call.ended.set()
        cast(ConcurrentRunningEngine, self.inner).abort()

    # A tokenizer serves one thread at a time.
    def _show(self, row: _Row, outcome: ToolOutcome, sampling: Sampling) -> FinishReason | None:
        with self._lock:
            return super()._show(row, outcome, sampling)

    def _carry_over(
        self, row: _Row, last: Completion, chunking: Chunking, sampling: Sampling
    ) -> FinishReason | None:
        with self._lock:
            return super()._carry_over(row, last, chunking, sampling)

    def _finish(self, group: Sequence[_Row]) -> tuple[Completion, ...]:
        with self._lock:
            return super()._finish(group)

    def _count(self, calls: Sequence[Call]) -> None:
        with self._lock:
            super()._count(calls)


@dataclass(eq=False)
class _Generation:
    """A call of `generate`: groups fill by prompt number, from the threads of their rollouts."""

    driver: ConcurrentRunningDriver
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

    def begin(self, number: int, completions: Sequence[Completion]) -> None:
        """Let the rollouts of a group go on after their first turns."""
        rows = self.driver._begin(self.batch.prompts[number], completions, self.keys[number])
        self._submit(number, rows, rows)

    def wait(self) -> None:
        """Wait for all rollouts; one that begins others has named them before it ends."""
        while self.futures:
            self.futures.popleft().result()

    def _submit(self, number: int, group: list[_Row], rows: Sequence[_Row]) -> None:
        left = set(rows)
        for row in rows:
            self.futures.append(self.pool.submit(self._run, number, group, row, left))

    def _run(self, number: int, group: list[_Row], row: _Row, left: set[_Row]) -> None:
        """Run one rollout of a group to its end; the last of them ends the group or begins its rest."""
        try:
            self.driver._go_on([row], self.sampling, self._require_going)
            with self.driver._lock:
                left.discard(row)
                whole = not left
            if not whole:
                return
            if rest := self.driver._branch(group, self.keys[number], self.sampling):
                self._submit(number, [*group, *rest], rest)
                return
            self.groups[number] = self.driver._finish(group)
            if self.finished is not None:
                self.finished(number, self.groups[number])
        except BaseException as error:  # `generate` raises it again
            self.errors.append(error)
            self.ended.set()

    def _require_going(self) -> None:
        if self.ended.is_set():
            raise UserError("generation was aborted")


def first_view(family: Family, processor: object, prompt: Prompt) -> View:
    """Return what tools see of a prompt: its media, each in the space in which the policy writes of it."""
    frames = [family.frame(processor, medium) for medium in prompt.media]
    shown = zip(prompt.media, frames, prompt.sample.media, strict=True)
    return View(
        tuple(
            Shown(medium, frame, source=None if isinstance(medium, PilImage) else media)
            for medium, frame, media in shown
        )
    )


def keys_of(batch: PromptBatch, sampling: Sampling) -> list[list[tuple[int, ...]]]:
    """Return what names each completion in any company: sample, how often that came before, number."""
    keys: list[list[tuple[int, ...]]] = []
    for prompt, repeats in zip(batch.prompts, batch.repeats, strict=True):
        name = zlib.crc32(f"{prompt.sample.source}\n{prompt.sample.id}".encode())
        keys.append([(name, repeats, g) for g in range(sampling.n)])
    return keys


def with_keys(sampling: Sampling, keys: Sequence[Sequence[tuple[int, ...]]]) -> Sampling:
    """Return the sampling of first turns, of the first `sampling.n` completions that have keys."""
    seeds = tuple(tuple(_seed(sampling, key, 0) for key in own[: sampling.n]) for own in keys)
    return replace(sampling, keys=seeds)


def _seed(sampling: Sampling, key: tuple[int, ...], turn: int) -> int:
    return seed_of(sampling.seed, *key, turn)
