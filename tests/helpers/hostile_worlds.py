"""Small worlds, one of which misbehaves on request; workers import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from helpers.hostile_tools import echoed
from vlmrl.interaction.environment import Environment, Move, MoveOutcome, Part, Refused, Sample


@dataclass(frozen=True)
class Corridor(Environment):
    """Three places in a row: the right one pays."""

    actions: ClassVar[tuple[str, ...]] = ("go", "misbehave")

    limit_s: float = 20.0

    @property
    def time_limit_s(self) -> float:
        return self.limit_s

    def reset(self, sample: Sample, seed: int) -> int:
        return 0

    def observe(self, state: int) -> Sequence[Part]:
        return [f"at {state}"]

    def task(self, state: int) -> str:
        return "Go to the right."

    def go(
        self, state: int, direction: Annotated[Literal["left", "right"], "where"]
    ) -> MoveOutcome:
        """Go to a neighbour."""
        there = state + (1 if direction == "right" else -1)
        if there < 0:
            raise Refused("there is a wall")
        done = there == 2
        reward = 1.0 if done else 0.25 * (1 if direction == "right" else 0)
        return MoveOutcome(
            there, [] if done else self.observe(there), reward, done, {"place": there}
        )

    def misbehave(self, state: int, how: str) -> MoveOutcome:
        """Do something that no world should do."""
        made: dict[str, Callable[[], MoveOutcome]] = {
            "hang": lambda: time.sleep(60) or MoveOutcome(state),
            "abort": lambda: os.abort(),
            "allocate": lambda: MoveOutcome(state, [str(len(bytearray(3 * 2**30)))]),
            "raise": _raise,
            "pay_nan": lambda: MoveOutcome(state, reward=float("nan")),
            "pay_text": lambda: MoveOutcome(state, reward="1000"),
            "measure_text": lambda: MoveOutcome(state, metrics={"x": "1"}),
            "measure_nan": lambda: MoveOutcome(state, metrics={"x": float("inf")}),
            "show_an_object": lambda: MoveOutcome(state, [_object()]),
            "keep_an_unpicklable_state": lambda: MoveOutcome(lambda: 1),
            "keep_a_huge_state": lambda: MoveOutcome(bytes(65 * 2**20)),
        }
        return made[how]()


@dataclass(frozen=True)
class Spoken(Environment):
    """A world whose action is all that is said."""

    def reset(self, sample: Sample, seed: int) -> int:
        return 0

    def observe(self, state: int) -> Sequence[Part]:
        return ["A door."]

    def task(self, state: int) -> str:
        return "Say what to do."

    def step(self, state: int, move: Move) -> MoveOutcome:
        opened = "open" in move.text
        return MoveOutcome(state + 1, [] if opened else ["It is shut."], float(opened), opened)


@dataclass(frozen=True)
class Echoes(Environment):
    """A world that shows whatever it is told to spell, and pays nothing."""

    actions: ClassVar[tuple[str, ...]] = ("echo",)

    def reset(self, sample: Sample, seed: int) -> str:
        return sample.media[0].kind

    def observe(self, state: str) -> Sequence[Part]:
        return ["Silence."]

    def task(self, state: str) -> str:
        return "Shout."

    def echo(self, state: str, code: Annotated[str, "the text in base64"]) -> MoveOutcome:
        """Hear it again."""
        return MoveOutcome(state, echoed(code, state))


def _raise() -> MoveOutcome:
    raise ConnectionRefusedError("nobody listens")


def _object() -> Any:
    return object()
