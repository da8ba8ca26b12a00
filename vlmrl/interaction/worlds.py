"""The worlds of a source's rollouts: what a policy asks for in a turn becomes steps in a process of its own.

A state is a value that stays here, as the bytes that the process returned: nothing of it is read in this
process, and a worker that died is replaced without loss. A refusal is an observation and leaves the state
as it was; whatever else an environment does is a fault.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from vlmrl.errors import UserError
from vlmrl.interaction import isolation
from vlmrl.interaction.environment import Environment, Move, Refused, State, check_number
from vlmrl.interaction.isolation import CallLimits
from vlmrl.interaction.tool import Shown, Tool, View
from vlmrl.interaction.tools import (
    AskedCall,
    PolicyTurn,
    Runner,
    Toolbox,
    ToolOutcome,
    World,
    WorldStep,
)
from vlmrl.media.access import Access
from vlmrl.plugins import nearest
from vlmrl.schema import Call, Frame, Sample, Space
from vlmrl.schema.media import PilImage
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, result

MAX_STATE = 64 * 2**20
"""Bytes that a pickled state may have."""
MAX_METRICS = 16
_METRIC = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """The moves of one turn, which were begun."""

    world: World
    moves: Sequence[Move]
    acted: Future[_Acted]


@dataclass(frozen=True, slots=True, eq=False)
class _Acted:
    """What came of the moves of one turn: a refusal (empty: none) and seconds for each."""

    state: bytes | None
    """None: the world is done."""
    parts: tuple[str | Shown, ...]
    refused: tuple[str, ...]
    seconds: tuple[float, ...]
    reward: float
    done: bool
    metrics: Mapping[str, float]


@dataclass
class Worlds(Runner):
    """An environment with the tools that may be used in it, in processes of their own; `close` it."""

    environment: Environment
    tools: Sequence[Tool] = ()
    """Of the source, besides those of the environment."""
    space: Space = "norm1"
    """The space in which the policy writes coordinates, for the schemas."""
    workers: int = 1
    limits: CallLimits = field(default_factory=CallLimits)
    access: Access = field(default_factory=Access)
    """What files tools may read again: those of the source."""

    def __post_init__(self) -> None:
        tools = [*self.environment.tools(), *self.tools]
        self._toolbox = Toolbox(tools, self.space, self.workers, self.limits, self.access)
        self._names = [schema["function"]["name"] for schema in self.schemas()]
        for name in self.environment.actions:
            if self._names.count(name) > 1:
                raise UserError(f"an action and a tool have the name {name!r}")
        prepare = functools.partial(
            _prepare, isolation.PackedParts.of(self.environment), self.limits
        )
        # What lives in one process is not in another one.
        workers = self.workers if self.environment.restartable else 1
        self._pool = DeadlinePool(workers, prepare, self.limits.memory_mb * 2**20)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the actions and the tools in OpenAI's form, for the prompt."""
        return [*self.environment.schemas(self.space), *self._toolbox.schemas()]

    @property
    def takes_text(self) -> bool:
        """Return whether everything that the policy writes is its action."""
        return not self.environment.actions

    def begin(self, sample: Sample, seed: int) -> World:
        """Return the world in which a rollout begins; nothing runs before its first turn."""
        return World(sample, seed)

    def run_all(self, turns: Sequence[PolicyTurn]) -> list[ToolOutcome]:
        """Return what came of the turns of several rollouts."""
        begun = [self._submit(turn) for turn in turns]
        other = [
            [self._known(call) for call in turn.calls if not self._acts(call)] for turn in turns
        ]
        asked = [PolicyTurn(calls, turn.view) for calls, turn in zip(other, turns, strict=True)]
        shown = self._toolbox.run_all(asked)
        return [
            tools if pending is None else self._gather(turn.view, pending, tools)
            for turn, pending, tools in zip(turns, begun, shown, strict=True)
        ]

    def leave(self, world: World) -> None:
        """Let the environment close a world that is not done; nobody waits for that."""
        holds = type(self.environment).close is not Environment.close
        if holds and world.state is not None:
            self._pool.submit(_leave, world.state, deadline=self.environment.time_limit_s)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
        self._toolbox.close()

    def _acts(self, call: AskedCall) -> bool:
        return not call.problem and call.name in self.environment.actions

    def _known(self, call: AskedCall) -> AskedCall:
        if call.problem or call.name in self._names:
            return call
        problem = f"there is no function {call.name!r}{nearest(call.name, self._names)}"
        return replace(call, problem=problem)

    def _submit(self, turn: PolicyTurn) -> _Pending | None:
        """Start the moves of a turn, one after another; None where it has none."""
        images = [item.frame for item in turn.view.shown if isinstance(item.medium, PilImage)]
        frame = images[-1] if images else Frame()
        acts = [call for call in turn.calls if self._acts(call)]
        moves = [Move(turn.text, call.name, call.arguments, frame) for call in acts]
        if self.takes_text and not turn.calls:
            moves = [Move(turn.text, frame=frame)]
        if not moves:
            return None
        world = turn.world
        assert world is not None, "a turn in a world has one"
        start = (world.sample, world.seed) if world.state is None else None
        limit = self.environment.time_limit_s
        work = (_act, start, world.state, moves, self.limits)
        return _Pending(world, moves, self._pool.submit(*work, deadline=limit))

    def _gather(self, view: View, pending: _Pending, tools: ToolOutcome) -> ToolOutcome:
        """Wait for the moves, and put them behind what the tools returned."""
        moves = pending.moves
        try:
            acted = result(pending.acted)
        except CallFailed as error:
            limit = self.environment.time_limit_s
            failed = [_call(move, "fault", str(error), limit) for move in moves]
            fault = "; ".join(filter(None, [tools.fault, f"{_name(moves[0])}: {error}"]))
            return ToolOutcome(calls=(*tools.calls, *failed), fault=fault)
        calls = [
            _call(move, "refused" if why else "ok", why, seconds)
            for move, why, seconds in zip(moves, acted.refused, acted.seconds, strict=True)
        ]
        world = replace(pending.world, state=acted.state)
        step = WorldStep(world, acted.reward, acted.done, acted.metrics)
        if tools.fault is not None:
            return ToolOutcome(calls=(*tools.calls, *calls), fault=tools.fault, step=step)
        # Images that the world shows are numbered where a tool may be asked for one.
        parts, shown = [*tools.parts], [*tools.shown]
        images = view.num_images + sum(isinstance(item.medium, PilImage) for item in shown)
        for part in acted.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            if isinstance(part.medium, PilImage) and self._toolbox.tools:
                images += 1
                parts.append(f"Image {images}:")
            parts.append(part.medium)
            shown.append(part)
        return ToolOutcome(tuple(parts), tuple(shown), (*tools.calls, *calls), step=step)


def _name(move: Move) -> str:
    return move.name or "act"


def _call(move: Move, outcome: Any, note: str, seconds: float) -> Call:
    return Call(_name(move), move.arguments, outcome, note, seconds)


# ------------------------------------------------------------------------------------ in the worker

_ENVIRONMENTS: list[Environment] = []
"""The environment of this worker process."""


def _prepare(packed: isolation.PackedParts, limits: CallLimits) -> None:
    isolation.limit_files(limits)
    environment = packed.read()
    environment.prepare()
    _ENVIRONMENTS[:] = [environment]


def _act(
    start: tuple[Sample, int] | None,
    stored: bytes | None,
    moves: Sequence[Move],
    limits: CallLimits,
) -> _Acted:
    """Do the moves of one turn; whatever an environment raises but `Refused` is a fault.

    A world that is done, or that failed, is closed.

    Raises:
        ValueError: what it returned is too large, or no step.
    """
    (environment,) = _ENVIRONMENTS
    state = environment.reset(*start) if start else pickle.loads(stored or b"")
    try:
        state, acted = _do(environment, state, moves, limits)
    except BaseException:
        with contextlib.suppress(Exception):  # why it failed says more
            environment.close(state)
        raise
    if acted.done:
        environment.close(state)
    return acted


def _do(
    environment: Environment, state: State, moves: Sequence[Move], limits: CallLimits
) -> tuple[State, _Acted]:
    """Return the state after the moves, and what is told of them."""
    parts: list[str | Shown] = []
    refused: list[str] = []
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    reward, done = 0.0, False
    for number, move in enumerate(moves):
        began, why = time.perf_counter(), ""
        try:
            if done or number >= limits.max_calls:
                raise Refused(
                    "the world is done" if done else f"expected at most {limits.max_calls} actions"
                )
            step = environment.step(state, move)
            state, done = step.state, bool(step.done)
            reward += check_number(step.reward)
            metrics |= _checked(step.metrics)
            parts += isolation.check_parts(step.parts, limits)
        except Refused as error:
            why = isolation.clean(str(error))[: isolation.MAX_REFUSAL] or "refused"
            parts.append(f"Error: {why}")
        refused.append(why)
        seconds.append(time.perf_counter() - began)
    if not math.isfinite(reward):
        raise ValueError(f"expected a finite reward, got {reward}")
    kept = None if done else pickle.dumps(state)
    if kept is not None and len(kept) > MAX_STATE:
        raise ValueError(f"expected a state of at most {MAX_STATE} bytes, got {len(kept)}")
    return state, _Acted(kept, tuple(parts), tuple(refused), tuple(seconds), reward, done, metrics)


def _leave(stored: bytes) -> None:
    (environment,) = _ENVIRONMENTS
    environment.close(pickle.loads(stored))


def _checked(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a step's metrics as plain numbers.

    Raises:
        ValueError: there are too many, or a name or number that is none.
    """
    if len(metrics) > MAX_METRICS:
        raise ValueError(f"expected at most {MAX_METRICS} metrics, got {len(metrics)}")
    numbers = {name: check_number(number) for name, number in metrics.items()}
    for name, number in numbers.items():
        if not _METRIC.fullmatch(name) or not math.isfinite(number):
            raise ValueError(
                f"expected a metric in lower case and a finite number, got {name!r:.60}: {number}"
            )
    return numbers
