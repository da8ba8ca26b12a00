"""Environment classes as TRL's GRPO trainer takes them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl import plugins
from vlmrl.interaction import tool
from vlmrl.interaction.environment import (
    Environment,
    Move,
    MoveOutcome,
    Part,
    Refused,
    Sample,
    check_number,
    seed_for,
)
from vlmrl.schema import Frame

OURS = ("reset", "get_reward")


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """An object of the class, never changed: each step works on a copy."""

    world: Any
    shown: Any


@dataclass(frozen=True)
class TrlClass(Environment):
    """A class as TRL's GRPO trainer takes it: `reset`, public methods as actions, and its reward.

    An object is copied before each step, so one that holds a connection does not work: write that as an
    environment of its own. The reward of a step is what `get_reward()`, or the attribute `reward`, rose by;
    the attribute `done` ends the world. ValueError is told to the policy, as TRL does with every exception.

    Source: TRL's guide to OpenEnv, which describes such classes (argument environment_factory).
    """

    factory: str
    """The class: `path/to/file.py:Name` or `package.module:Name`."""
    instruction: str = "Reach the goal."
    """What the policy is asked to do."""

    def prepare(self) -> None:
        """Load the class."""
        plugins.load("environment", self.factory)

    def reset(self, sample: Sample, seed: int) -> Copied:
        """Make an object and reset it, with the sample's `meta` and the seed as far as it takes them."""
        world = plugins.load("environment", self.factory)()
        arguments = {**sample.meta, "seed": seed_for(sample, seed)}
        known = inspect.signature(world.reset).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            arguments = {key: value for key, value in arguments.items() if key in known}
        return Copied(world, world.reset(**arguments))

    def observe(self, state: Copied) -> Sequence[Part]:
        """Return what the last method returned."""
        if state.shown is None:
            return []
        several = isinstance(state.shown, list | tuple)
        return list(state.shown) if several else [state.shown]

    def task(self, state: Copied) -> str:
        """Return what to do."""
        return self.instruction

    def step(self, state: Copied, move: Move) -> MoveOutcome:
        """Call a method of a copy."""
        methods = self.methods()
        if move.name not in methods:
            raise Refused(f"there is no action {move.name!r:.60}: expected {', '.join(methods)}")
        arguments = tool.to_values(methods[move.name], move.arguments, lambda *_: Frame())
        world, before = copy.deepcopy(state.world), _reward(state.world)
        try:
            shown = getattr(world, move.name)(**arguments)
        except ValueError as error:
            raise Refused(" ".join(str(error).split())[:400] or "refused") from error
        after, done = Copied(world, shown), bool(getattr(world, "done", False))
        return MoveOutcome(
            after, [] if done else self.observe(after), _reward(world) - before, done
        )

    @property
    def actions(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the public methods."""
        return (*self.methods(),)

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the public methods by name."""
        made = plugins.load("environment", self.factory)
        members = inspect.getmembers(made, inspect.isfunction)
        return {name: method for name, method in members if name[0] != "_" and name not in OURS}


def _reward(world: object) -> float:
    asked = getattr(world, "get_reward", None)
    reward = asked() if asked else getattr(world, "reward", 0.0)
    return 0.0 if reward is None else check_number(reward)
