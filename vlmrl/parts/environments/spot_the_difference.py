"""Two drawings that differ in one thing: point at it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from PIL import Image, ImageDraw

from vlmrl.interaction.environment import (
    Box,
    Environment,
    MoveOutcome,
    Part,
    Point,
    Sample,
    seed_for,
)

COLOURS = ("#d03030", "#30a030", "#3050d0", "#d0a020", "#9030b0", "#20a0a0")


@dataclass(frozen=True, slots=True)
class SpotState:
    """The drawings' seed, and the points that were tried."""

    seed: int
    tries: int = 0


@dataclass(frozen=True)
class SpotTheDifference(Environment):
    """Two drawings, one above the other, that differ in one shape: point at it in either.

    A hit pays 1, less `try_cost` for each point that missed.
    """

    actions: ClassVar[tuple[str, ...]] = ("point_at",)

    shapes: int = 6
    """Shapes of a drawing."""
    width: int = 224
    """Pixels of its width; it is half as high."""
    max_tries: int = 3
    """Points that may be tried."""
    try_cost: float = 0.25
    """What each miss costs of the reward for the hit."""

    def __post_init__(self) -> None:
        if not (1 <= self.shapes <= 18 and 56 <= self.width <= 2048 and self.max_tries >= 1):
            raise ValueError(
                "expected shapes 1 to 18, width 56 to 2048 and max_tries of at least 1"
            )

    def reset(self, sample: Sample, seed: int) -> SpotState:
        """Return the pair of a seed."""
        return SpotState(seed_for(sample, seed))

    def observe(self, state: SpotState) -> Sequence[Part]:
        """Return both drawings in one image."""
        places, odd = self._layout(state.seed)
        height = self.width // 2
        image = Image.new("RGB", (self.width, 2 * height), "white")
        pen = ImageDraw.Draw(image)
        for top in (0, height):
            for number, ((x, y), colour) in enumerate(places):
                colour = odd if top and number == 0 else colour
                box = self._box(x, y)
                corners = (
                    box.x1 * self.width,
                    top + box.y1 * height,
                    box.x2 * self.width,
                    top + box.y2 * height,
                )
                (pen.ellipse if number % 2 else pen.rectangle)(corners, fill=colour)
        pen.line((0, height, self.width, height), fill="black", width=2)
        return [image]

    def task(self, state: SpotState) -> str:
        """Return what to do."""
        return "The upper and the lower drawing differ in one shape. Point at it."

    def point_at(
        self, state: SpotState, point: Annotated[Point, "where they differ"]
    ) -> MoveOutcome:
        """Point at the difference."""
        ((x, y), _), *_ = self._layout(state.seed)[0]
        box, inner = self._box(x, y), point.y * 2 % 1
        hit = box.x1 <= point.x <= box.x2 and box.y1 <= inner <= box.y2
        after = replace(state, tries=state.tries + 1)
        done = hit or after.tries >= self.max_tries
        reward = max(0.0, 1.0 - self.try_cost * state.tries) if hit else 0.0
        shown: list[Part] = [] if done else ["They do not differ there."]
        return MoveOutcome(after, shown, reward, done, {"solved": float(hit)})

    def _layout(self, seed: int) -> tuple[list[tuple[tuple[int, int], str]], str]:
        """Return cell and colour of each shape, and the colour of the first one below."""
        draw = random.Random(seed)
        cells = draw.sample([(x, y) for x in range(6) for y in range(3)], self.shapes)
        places = [(cell, draw.choice(COLOURS)) for cell in cells]
        others = [colour for colour in COLOURS if colour != places[0][1]]
        return places, draw.choice(others)

    def _box(self, x: int, y: int) -> Box:
        return Box((x + 0.15) / 6, (y + 0.15) / 3, (x + 0.85) / 6, (y + 0.85) / 3)
