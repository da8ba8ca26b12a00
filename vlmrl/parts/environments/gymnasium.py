"""Any environment of Gymnasium with images."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from PIL import Image

from vlmrl.errors import UserError, import_extra
from vlmrl.interaction.environment import Environment, MoveOutcome, Part, Refused, Sample, seed_for


@dataclass(frozen=True, slots=True)
class Played:
    """All that has happened: it is played again from the seed where the live world is not at hand."""

    seed: int
    moves: tuple[int, ...] = ()


class _Live:
    """The world of this process that was stepped last, and what it last returned.

    `state` is None where it is in none that can be named.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.state: Played | None = None
        self.seen: Any = None


@dataclass(frozen=True)
class Gymnasium(Environment):
    """An environment of Gymnasium with discrete actions: `reset` and `step` map one to one.

    A state is the seed and the actions so far. The world must be a function of these; it is played
    again from the start where a rollout moved to another process. It is seen by `render()`, or by its
    observation if it has no images.

    Raises:
        UserError: the environment does not exist, cannot be drawn, or has no discrete actions.
    """

    actions: ClassVar[tuple[str, ...]] = ("act",)

    id: str = "FrozenLake-v1"
    """Its name in Gymnasium's registry."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of `gymnasium.make`."""
    names: tuple[str, ...] = ()
    """What the actions are called, in order; empty: by their numbers."""
    instruction: str = "Reach the goal."
    """What the policy is asked to do."""
    images: bool = False
    """Whether it is drawn; otherwise its observation is told as text."""
    max_moves: int = 100
    """Actions after which the world ends."""

    def reset(self, sample: Sample, seed: int) -> Played:
        """Return the start of a seed."""
        return Played(seed_for(sample, seed) % 2**31)

    def observe(self, state: Played) -> Sequence[Part]:
        """Return the image of a state, or its observation as text."""
        live = self._at(state)
        if not self.images:
            return [str(live.seen)]
        pixels = np.asarray(live.world.render(), np.uint8)
        return [Image.fromarray(pixels)]

    def task(self, state: Played) -> str:
        """Return what to do and what the actions are called."""
        count = int(self._live.world.action_space.n)
        return f"{self.instruction} Actions: {', '.join(self.names or map(str, range(count)))}."

    def act(
        self, state: Played, action: Annotated[str, "name or number of the action"]
    ) -> MoveOutcome:
        """Do one action."""
        count = int(self._live.world.action_space.n)
        known = [*(self.names or map(str, range(count)))]
        if action not in known:
            raise Refused(f"there is no action {action!r:.60}: expected one of {', '.join(known)}")
        live, number = self._at(state), known.index(action)
        after = Played(state.seed, (*state.moves, number))
        live.state = None  # should the step fail half done
        live.seen, reward, ended, cut, _ = live.world.step(number)
        live.state = None if ended or cut else after
        done = bool(ended or cut) or len(after.moves) >= self.max_moves
        return MoveOutcome(after, [] if done else self.observe(after), reward, done)

    @functools.cached_property
    def _live(self) -> _Live:
        gymnasium = import_extra("gymnasium", "games")
        try:
            mode = "rgb_array" if self.images else None
            world = gymnasium.make(self.id, render_mode=mode, **self.options)
        except (gymnasium.error.Error, TypeError) as error:
            raise UserError(f"gymnasium {self.id!r}: {error}") from error
        if not hasattr(world.action_space, "n"):
            raise UserError(
                f"gymnasium {self.id!r}: expected discrete actions, got {world.action_space}"
            )
        return _Live(world)

    def _at(self, state: Played) -> _Live:
        """Return the live world in a state, played again if it is in another one."""
        live = self._live
        if live.state != state:
            live.state = None
            live.seen, _ = live.world.reset(seed=state.seed)
            for number in state.moves:
                live.seen, *_ = live.world.step(number)
            live.state = state
        return live

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_live"}
