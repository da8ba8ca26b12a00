"""The contract of an environment: a frozen dataclass whose state is a value.

`step` returns a new state and never changes the old one, so that a rollout can be resumed, repeated or
moved to another process. What a policy may do are methods named in `actions`: their type hints become
functions in OpenAI's form, as those of a tool do. `Refused` is told to the policy and leaves the state
as it was; whatever else an environment raises is a fault.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, SupportsFloat

from vlmrl.interaction import tool
from vlmrl.interaction.tool import Part, Refused, Tool
from vlmrl.schema import Box as Box
from vlmrl.schema import Frame, MediaKind, Point, Sample, Space

SEED = "environment_seed"
"""Key of a sample's `meta`: the seed of the world that its prompt shows."""
State = Any
"""A picklable value, of a type of the environment's own."""


@dataclass(frozen=True, slots=True)
class Move:
    """What the policy did in one turn."""

    text: str = ""
    """Everything that it wrote."""
    name: str = ""
    """The action that it called; empty: none."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    frame: Frame = field(default_factory=Frame)
    """The space in which it writes of the last image that it was shown."""


@dataclass(frozen=True, slots=True, eq=False)
class MoveOutcome:
    """What came of a move."""

    state: State
    parts: Sequence[Part] = ()
    """What the policy is shown; nothing where the world is done."""
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_number(value: object) -> float:
    """Return a reward or a metric that a world states, a number of any library; no text is one.

    Raises:
        ValueError: it is no number.
    """
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise ValueError(f"expected a number, got {value!r:.80}")
    return float(value)


@dataclass(frozen=True)
class Environment:
    """A world; a subclass defines `reset`, `observe`, `task`, and its actions or `step`."""

    actions: ClassVar[tuple[str, ...]] = ()
    """Methods that the policy may call: `method(state, ...) -> MoveOutcome`."""
    restartable: ClassVar[bool] = True
    """Whether a state is all there is to it; a server behind it says False."""

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that the actions of one turn may take."""
        return 20.0

    def prepare(self) -> None:
        """Load what the first step needs; runs in each worker process, without a time limit."""

    def reset(self, sample: Sample, seed: int) -> State:
        """Return the first state: a function of the sample and the seed."""
        raise TypeError(f"{type(self).__name__} must define reset")

    def observe(self, state: State) -> Sequence[Part]:
        """Return what a state looks like."""
        raise TypeError(f"{type(self).__name__} must define observe")

    def task(self, state: State) -> str:
        """Return what the policy is asked to do."""
        raise TypeError(f"{type(self).__name__} must define task")

    def demonstrate(self, state: State) -> tuple[str, Mapping[str, Any]] | None:
        """Return the action of a script, its places in the unit square; None: there is no script.

        For the cold start, which runs it.
        """
        return None

    def play(self, state: State, max_moves: int = 64) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the actions of its script until the world is done; empty where it has no script."""
        actions: list[tuple[str, Mapping[str, Any]]] = []
        while len(actions) < max_moves and (action := self.demonstrate(state)) is not None:
            name, arguments = action
            plain = {
                key: [value.x, value.y] if isinstance(value, Point) else value
                for key, value in arguments.items()
            }
            step = self.step(state, Move("", name, plain, Frame(1, 1, "norm1")))
            actions.append(action)
            if step.done:
                break
            state = step.state
        return actions

    def step(self, state: State, move: Move) -> MoveOutcome:
        """Return what comes of a move; the base class calls the action that it names.

        Raises:
            Refused: there is no such action, its arguments are wrong, or the state does not allow it.
        """
        if move.name not in self.actions:
            known = ", ".join(self.actions)
            raise Refused(f"there is no action {move.name!r:.60}: expected one of {known}")

        def frame_of(kind: MediaKind, number: int) -> Frame:
            return move.frame

        method = getattr(self, move.name)
        return method(state, **tool.to_values(method, move.arguments, frame_of))

    def close(self, state: State) -> None:
        """Let go of a state that is not stepped again: for what lives in a server."""

    def tools(self) -> Sequence[Tool]:
        """Return tools that the policy may use besides."""
        return ()

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Return the actions in OpenAI's form; `space` is that of the policy's coordinates."""
        return [
            tool.schema(method, name, inspect.getdoc(method) or name, space)
            for name, method in self.methods().items()
        ]

    def methods(self) -> Mapping[str, Callable[..., Any]]:
        """Return the actions by name."""
        return {name: getattr(self, name) for name in self.actions}


def seed_for(sample: Sample, seed: int) -> int:
    """Return the seed of the world that a sample's prompt shows; without one, the given seed."""
    return int(sample.meta.get(SEED, seed))
