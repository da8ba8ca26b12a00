"""Boards of squares, drawn with rectangles and discs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from PIL import Image, ImageDraw

from vlmrl.schema.media import PilImage

Cell = tuple[int, int]
"""(column, row), from 0."""
Direction = Annotated[Literal["up", "down", "left", "right"], "where to go"]
STEPS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
SQUARE = 28
"""Pixels of a square's side."""


def step_to(cell: Cell, direction: str) -> Cell:
    """Return the neighbour of a cell, which may be off the board."""
    across, down = STEPS[direction]
    return cell[0] + across, cell[1] + down


def reachable(start: Cell, size: int, blocked: Iterable[Cell]) -> dict[Cell, int]:
    """Return the cells that can be reached, with the number of steps to each."""
    closed, distances, edge = set(blocked), {start: 0}, [start]
    while edge:
        cell = edge.pop(0)
        for direction in STEPS:
            there = step_to(cell, direction)
            inside = 0 <= there[0] < size and 0 <= there[1] < size
            if inside and there not in closed and there not in distances:
                distances[there] = distances[cell] + 1
                edge.append(there)
    return distances


def draw(
    size: int, ground: str, squares: Mapping[Cell, str], discs: Mapping[Cell, str]
) -> PilImage:
    """Return the board as an image: coloured squares, and discs on them."""
    image = Image.new("RGB", (size * SQUARE, size * SQUARE), ground)
    pen = ImageDraw.Draw(image)
    for (column, row), colour in squares.items():
        left, top = column * SQUARE, row * SQUARE
        pen.rectangle((left, top, left + SQUARE - 1, top + SQUARE - 1), fill=colour)
    for line in range(0, size * SQUARE + 1, SQUARE):
        pen.line((line, 0, line, size * SQUARE), fill="#c0c0c0")
        pen.line((0, line, size * SQUARE, line), fill="#c0c0c0")
    for (column, row), colour in discs.items():
        left, top = column * SQUARE, row * SQUARE
        pen.ellipse((left + 5, top + 5, left + SQUARE - 6, top + SQUARE - 6), fill=colour)
    return image
