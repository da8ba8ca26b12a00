"""Run the calls that a policy asked for, and say what it is shown.

A refusal is an observation: malformed, unknown, wrong arguments, or what the tool itself refuses. A
failure is a fault: the tool hung, died, raised or returned what cannot be shown. A fault never reaches
the policy, so that a dead tool does not teach that tools are useless.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Protocol

from vlmrl.errors import UserError
from vlmrl.interaction import isolation
from vlmrl.interaction.isolation import CallLimits, CallReply, SharedMediaFolder
from vlmrl.interaction.tool import Shown, Tool, View
from vlmrl.media.access import Access
from vlmrl.plugins import nearest
from vlmrl.schema import Sample, Space
from vlmrl.schema.media import Decoded, PilImage
from vlmrl.schema.turns import Call, CallOutcome
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, TooLate, result

# --------------------------------------------------------------------------------------------------
# Read the calls of tools that a policy wrote, in the form that Qwen and Hermes models were taught.
#
#     <tool_call>{"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}</tool_call>
#
# A call that cannot be read is no fault: it becomes an observation that says what was expected.


OPEN, CLOSE, THOUGHT_END = "<tool_call>", "</tool_call>", "</think>"
FORM = '{"name": ..., "arguments": {...}}'
MAX_CHARS = 20_000
"""Characters that one call may have."""
MAX_CALLS = 64
"""Calls that one turn may hold; the rest are refused as one."""


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as the policy wrote it: places are in its own space."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    problem: str = ""
    """Why it cannot be read, in a sentence for the policy; empty: it can."""


def parse_calls(text: str) -> tuple[AskedCall, ...]:
    """Return the calls in a policy's turn, in order; those in its thought are thoughts.

    `text` is what the policy wrote, never an observation.
    """
    spoken = text.rpartition(THOUGHT_END)[2]
    blocks = spoken.split(OPEN)[1:]
    if len(blocks) > MAX_CALLS:
        return (AskedCall("", problem=f"expected at most {MAX_CALLS} calls, got {len(blocks)}"),)
    return tuple(_read(block) for block in blocks)


def _read(block: str) -> AskedCall:
    inside, closed, _ = block.partition(CLOSE)
    if not closed:
        return AskedCall("", problem=f"expected {CLOSE} at the end of a call")
    if len(inside) > MAX_CHARS:
        return AskedCall("", problem=f"expected a call of at most {MAX_CHARS} characters")
    try:
        value = json.loads(inside, parse_constant=_refuse_constant, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return AskedCall("", problem=f"expected a call in JSON, {FORM}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return AskedCall("", problem=f"expected a call {FORM}")
    name, arguments = value.pop("name")[:80], value.pop("arguments", {})
    if value:
        return AskedCall(
            name, problem=f"expected a call {FORM}, got the key {next(iter(value))!r:.60} too"
        )
    if not isinstance(arguments, dict):
        return AskedCall(name, problem=f"arguments: expected an object, got {arguments!r:.60}")
    return AskedCall(name, arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits:.60} is too large")
    return number


# --------------------------------------------------------------------------------------------------
# Run the calls of a turn, and put together what the policy is shown.


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The world of one rollout."""

    sample: Sample
    seed: int
    """Of the world, where the sample does not say which one its prompt shows."""
    state: bytes | None = None
    """Its state, pickled; None: no step was taken yet, or it is done and closed."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTurn:
    """What a policy did in one turn."""

    calls: Sequence[AskedCall]
    view: View
    text: str = ""
    """All that it wrote."""
    world: World | None = None
    """Where it acted; None: its source has no environment."""


@dataclass(frozen=True, slots=True, eq=False)
class WorldStep:
    """What a turn did to the world of a rollout."""

    world: World
    """The world as it is now."""
    reward: float
    done: bool
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class ToolOutcome:
    """What came of the calls of one turn."""

    parts: tuple[str | Decoded, ...] = ()
    """What the policy is shown, in order."""
    shown: tuple[Shown, ...] = ()
    """The media among the parts, in order, each with where it was cut from: for `View.then`."""
    calls: tuple[Call, ...] = ()
    fault: str | None = None
    """Why a tool failed: the rollout is then masked, and nothing is shown. None: none did."""
    step: WorldStep | None = None
    """What became of the rollout's world; None: it has none, or nothing was done in it."""


class Runner(Protocol):
    """What runs the calls of a source: its tools, or an environment with the tools in it."""

    @property
    def takes_text(self) -> bool:
        """Return whether everything that the policy writes is its action."""

    def schemas(self) -> list[dict[str, Any]]:
        """Return all functions in OpenAI's form, for the prompt."""

    def begin(self, sample: Sample, seed: int) -> World | None:
        """Return the world in which a rollout begins; None where there is no environment."""

    def run_all(self, turns: Sequence[PolicyTurn]) -> list[ToolOutcome]:
        """Return what came of the turns of several rollouts."""

    def leave(self, world: World) -> None:
        """Let go of a world in which nobody acts any more, though it may not be done."""

    def close(self) -> None:
        """End its processes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A call that was begun, or whose answer is known."""

    asked: AskedCall
    answer: CallReply | Future[CallReply]
    limit_s: float = 0.0
    owns_time: bool = False

    def wait(self) -> CallReply:
        """Return the answer.

        Raises:
            CallFailed: the tool failed.
        """
        if isinstance(self.answer, CallReply):
            return self.answer
        try:
            return result(self.answer)
        except TooLate:
            if not self.owns_time:
                raise
            return CallReply((), f"it took more than {self.limit_s:g} seconds", self.limit_s)


@dataclass
class Toolbox(Runner):
    """The tools of a source, in `workers` processes of their own; `close` it, or use it in a `with`."""

    tools: Sequence[Tool]
    space: Space = "norm1"
    """The space in which the policy writes coordinates, for the schemas."""
    workers: int = 1
    limits: CallLimits = field(default_factory=CallLimits)
    access: Access = field(default_factory=Access)
    """What files tools may read again: those of the source."""
    takes_text: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._by_name: dict[str, Tool] = {}
        self._schemas: list[dict[str, Any]] = []
        for tool in self.tools:
            for schema in tool.schemas(self.space):
                name = schema["function"]["name"]
                if name in self._by_name:
                    raise UserError(f"two tools have a function {name!r}")
                self._by_name[name] = tool
                self._schemas.append(schema)
        names = [str(index) for index in range(len(self.tools))]
        prepare = functools.partial(
            isolation.prepare, isolation.PackedParts.of([*self.tools]), names, self.limits
        )
        self._pool = DeadlinePool(self.workers, prepare, self.limits.memory_mb * 2**20)
        self._folder = SharedMediaFolder()

    def schemas(self) -> list[dict[str, Any]]:
        """Return all functions in OpenAI's form, for the prompt."""
        return [*self._schemas]

    def begin(self, sample: Sample, seed: int) -> None:
        """Return None: tools alone are no world."""

    def run_all(self, turns: Sequence[PolicyTurn]) -> list[ToolOutcome]:
        """Run the calls of several rollouts, as many at a time as there are workers.

        All calls of one turn see the same view.
        """
        begun = [self._submit(turn.calls, turn.view) for turn in turns]
        return [_gather(turn.view, pending) for turn, pending in zip(turns, begun, strict=True)]

    def leave(self, world: World) -> None:
        """Do nothing: tools alone are no world."""

    def _submit(self, calls: Sequence[AskedCall], view: View) -> list[_Pending]:
        """Start what can be started; a call that cannot has its refusal at once."""
        shared, pending = None, []
        for number, asked in enumerate(calls):
            tool = self._by_name.get(asked.name)
            problem = asked.problem
            if not problem and tool is None:
                known = [*self._by_name]
                problem = f"there is no tool {asked.name!r}{nearest(asked.name, known)}"
            if not problem and number >= self.limits.max_calls:
                problem = f"expected at most {self.limits.max_calls} calls in a turn"
            if problem or tool is None:
                pending.append(_Pending(asked, CallReply((), isolation.clean(problem), 0.0)))
                continue
            shared = shared or self._folder.share(replace(view, access=self.access))
            arguments = (
                str(self.tools.index(tool)),
                asked.name,
                asked.arguments,
                shared,
                self.limits,
            )
            limit = tool.time_limit_s
            future = self._pool.submit(isolation.call, *arguments, deadline=limit)
            pending.append(_Pending(asked, future, limit, tool.owns_time))
        return pending

    def close(self) -> None:
        """End the worker processes and remove the shared media."""
        self._pool.close()
        self._folder.close()

    def __enter__(self) -> Toolbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stated_outcome(
    view: View, calls: Sequence[AskedCall], parts: Sequence[str | Shown]
) -> ToolOutcome:
    """Return what came of a turn's calls where that is stated: the parts are shown as the last one's."""
    known: list[tuple[str | Shown, ...]] = [()] * (len(calls) - 1) + [tuple(parts)]
    asked = calls or [AskedCall("")]
    replies = [CallReply(shown, "", 0.0) for shown in known[-len(asked) :]]
    outcome = _gather(view, [_Pending(*pair) for pair in zip(asked, replies, strict=True)])
    return outcome if calls else replace(outcome, calls=())


def _gather(view: View, pending: Sequence[_Pending]) -> ToolOutcome:
    """Wait for the calls of one turn, all of them, and put together what is shown."""
    parts: list[str | Decoded] = []
    shown: list[Shown] = []
    calls: list[Call] = []
    faults: list[str] = []
    images = view.num_images
    for call in pending:
        name, arguments = call.asked.name, call.asked.arguments
        try:
            answer = call.wait()
        except CallFailed as error:
            calls.append(Call(name, arguments, "fault", str(error), call.limit_s))
            faults.append(f"{name}: {error}")
            continue
        reply: list[str | Shown] = [*answer.parts]
        if answer.refused:
            reply = [f"Error: {answer.refused}"]
        for part in reply:
            if isinstance(part, str):
                parts.append(part)
                continue
            if isinstance(part.medium, PilImage):
                images += 1
                parts.append(f"Image {images}:")
            parts.append(part.medium)
            shown.append(part)
        outcome: CallOutcome = "refused" if answer.refused else "ok"
        cut = (part for part in reply if isinstance(part, Shown) and part.original is not None)
        first = next(cut, None)
        box, image = (first.box, first.original) if first is not None else (None, None)
        names = tuple(part.name for part in reply if isinstance(part, Shown) and part.name)
        log = (outcome, answer.refused, answer.seconds, box, image, names)
        calls.append(Call(name, arguments, *log))
    if faults:
        return ToolOutcome(calls=tuple(calls), fault="; ".join(faults))
    return ToolOutcome(tuple(parts), tuple(shown), tuple(calls))
