"""Gymnasium's FrozenLake, drawn by us."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.interaction.environment import Environment, MoveOutcome, Part, Sample, seed_for
from vlmrl.parts.environments import board
from vlmrl.parts.environments.board import Cell, Direction

SIDES = {"up": "left right", "down": "right left", "left": "down up", "right": "up down"}


@dataclass(frozen=True, slots=True)
class Lake:
    """Where everything is; `seed` decides where the ice is slippery next."""

    holes: frozenset[Cell]
    agent: Cell
    seed: int
    moves: int = 0


@dataclass(frozen=True)
class FrozenLake(Environment):
    """A frozen lake: walk from the upper left to the green square, past the holes.

    The goal pays 1, a hole ends the world. At the edge a step leads nowhere.

    Source: Gymnasium, `FrozenLake-v1`: holes with probability 0.2, boards whose goal cannot be reached
    are drawn again, and on slippery ice a step goes where it should in a third of the cases, else to
    either side.

    Differs: where it slips is a function of seed and step, so that a state can be stepped again.
    """

    actions: ClassVar[tuple[str, ...]] = ("move",)

    size: int = 4
    """Squares of a side."""
    holes: float = 0.2
    """Probability that a square is a hole."""
    slippery: bool = False
    """Whether two of three steps slip to a side."""
    max_moves: int = 20
    """Steps after which the world ends."""

    def __post_init__(self) -> None:
        if not (2 <= self.size <= 32 and 0 <= self.holes < 0.5 and self.max_moves >= 1):
            raise ValueError("expected size 2 to 32, holes in [0, 0.5) and max_moves of at least 1")

    def reset(self, sample: Sample, seed: int) -> Lake:
        """Draw holes until the goal can be reached."""
        seed = seed_for(sample, seed)
        draw = random.Random(seed)
        cells = [(column, row) for column in range(self.size) for row in range(self.size)]
        while True:
            holes = frozenset(cell for cell in cells[1:-1] if draw.random() < self.holes)
            if cells[-1] in board.reachable((0, 0), self.size, holes):
                return Lake(holes, (0, 0), seed)

    def observe(self, state: Lake) -> Sequence[Part]:
        """Return the lake."""
        last = (self.size - 1, self.size - 1)
        squares = {**dict.fromkeys(state.holes, "#103070"), last: "#20b040"}
        return [board.draw(self.size, "#d8ecff", squares, {state.agent: "#e04020"})]

    def task(self, state: Lake) -> str:
        """Return what to do."""
        return "Lead the red disc to the green square. Dark squares are holes in the ice."

    def move(self, state: Lake, direction: Direction) -> MoveOutcome:
        """Move the red disc by one square."""
        way: str = direction
        if self.slippery:
            ways = (way, *SIDES[way].split())
            way = random.Random(f"{state.seed} {state.moves}").choice(ways)
        there = board.step_to(state.agent, way)
        if not all(0 <= coordinate < self.size for coordinate in there):
            there = state.agent
        after = replace(state, agent=there, moves=state.moves + 1)
        solved = there == (self.size - 1, self.size - 1)
        done = solved or there in state.holes or after.moves >= self.max_moves
        shown = [] if done else self.observe(after)
        return MoveOutcome(after, shown, float(solved), done, {"solved": float(solved)})
