"""A board with walls, drawn by us: find the way to the goal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.interaction.environment import Environment, MoveOutcome, Part, Refused, Sample, seed_for
from vlmrl.parts.environments import board
from vlmrl.parts.environments.board import Cell, Direction


@dataclass(frozen=True, slots=True)
class Board:
    """Where everything is."""

    walls: frozenset[Cell]
    goal: Cell
    agent: Cell
    moves: int = 0


@dataclass(frozen=True)
class GridWorld(Environment):
    """A board with walls: lead the blue disc to the green square.

    The goal pays 1, a step `step_cost` less; a wall is refused. The way always exists.
    """

    actions: ClassVar[tuple[str, ...]] = ("move",)

    size: int = 5
    """Squares of a side."""
    walls: float = 0.2
    """Share of the squares that are walls."""
    step_cost: float = 0.0
    """What each step costs."""
    max_moves: int = 20
    """Steps after which the world ends."""

    def __post_init__(self) -> None:
        if not (2 <= self.size <= 32 and 0 <= self.walls < 0.6 and self.max_moves >= 1):
            raise ValueError("expected size 2 to 32, walls in [0, 0.6) and max_moves of at least 1")

    def reset(self, sample: Sample, seed: int) -> Board:
        """Draw walls until the goal can be reached."""
        draw = random.Random(seed_for(sample, seed))
        cells = [(column, row) for column in range(self.size) for row in range(self.size)]
        while True:
            agent, goal, *rest = draw.sample(cells, len(cells))
            walls = frozenset(rest[: int(self.walls * len(cells))])
            if goal in board.reachable(agent, self.size, walls):
                return Board(walls, goal, agent)

    def observe(self, state: Board) -> Sequence[Part]:
        """Return the board."""
        squares = {**dict.fromkeys(state.walls, "#404040"), state.goal: "#20b040"}
        return [board.draw(self.size, "white", squares, {state.agent: "#2050e0"})]

    def task(self, state: Board) -> str:
        """Return what to do."""
        return "Lead the blue disc to the green square. Dark squares are walls."

    def move(self, state: Board, direction: Direction) -> MoveOutcome:
        """Move the blue disc by one square."""
        there = board.step_to(state.agent, direction)
        if there in state.walls or not all(0 <= coordinate < self.size for coordinate in there):
            raise Refused(f"there is a wall {direction} of the disc")
        after = replace(state, agent=there, moves=state.moves + 1)
        solved = there == state.goal
        done = solved or after.moves >= self.max_moves
        shown = [] if done else self.observe(after)
        return MoveOutcome(
            after, shown, float(solved) - self.step_cost, done, {"solved": float(solved)}
        )
