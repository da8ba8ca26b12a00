"""An image cut into squares that were shuffled: put it together again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from PIL import Image, ImageDraw

from vlmrl.interaction.environment import Environment, MoveOutcome, Part, Refused, Sample, seed_for
from vlmrl.schema.media import PilImage


@dataclass(frozen=True, slots=True)
class Puzzle:
    """`order[place]` is the tile that lies there; places count from 0, row by row."""

    seed: int
    order: tuple[int, ...]
    swaps: int = 0


@dataclass(frozen=True)
class Jigsaw(Environment):
    """A drawn scene in shuffled tiles: swap two at a time until it is whole.

    The whole scene pays 1. `progress` is the share of tiles in their place.

    Used by: Jigsaw-R1 (arXiv 2505.23590), as a question with one answer.
    """

    actions: ClassVar[tuple[str, ...]] = ("swap",)

    size: int = 2
    """Tiles of a side."""
    tile_px: int = 56
    """Pixels of a tile's side."""
    max_swaps: int = 8
    """Swaps after which the world ends."""

    def __post_init__(self) -> None:
        if not (2 <= self.size <= 8 and 8 <= self.tile_px <= 512 and self.max_swaps >= 1):
            raise ValueError("expected size 2 to 8, tile_px 8 to 512 and max_swaps of at least 1")

    def reset(self, sample: Sample, seed: int) -> Puzzle:
        """Draw an order in which some tile is out of its place."""
        seed = seed_for(sample, seed)
        draw = random.Random(seed)
        whole = [*range(self.size**2)]
        order = whole
        while order == whole:
            order = draw.sample(whole, len(whole))
        return Puzzle(seed, tuple(order))

    def observe(self, state: Puzzle) -> Sequence[Part]:
        """Return the tiles as they lie."""
        scene, side = draw_scene(state.seed, self.size * self.tile_px), self.tile_px
        image = Image.new("RGB", scene.size)
        for cell, tile in enumerate(state.order):
            left, top = tile % self.size * side, tile // self.size * side
            corner = (cell % self.size * side, cell // self.size * side)
            image.paste(scene.crop((left, top, left + side, top + side)), corner)
        return [image]

    def task(self, state: Puzzle) -> str:
        """Return what to do."""
        places = self.size**2
        return (
            f"The {places} tiles of this image were shuffled. Put it together again. Places are "
            f"numbered from 1 to {places}, row by row."
        )

    def swap(
        self, state: Puzzle, first: Annotated[int, "a place"], second: Annotated[int, "another"]
    ) -> MoveOutcome:
        """Swap the tiles at two places."""
        places = range(1, self.size**2 + 1)
        if first not in places or second not in places or first == second:
            raise Refused(f"expected two different places from 1 to {len(places)}")
        order = [*state.order]
        order[first - 1], order[second - 1] = order[second - 1], order[first - 1]
        after = replace(state, order=tuple(order), swaps=state.swaps + 1)
        right = sum(cell == tile for cell, tile in enumerate(order))
        solved = right == len(order)
        done = solved or after.swaps >= self.max_swaps
        metrics = {"solved": float(solved), "progress": right / len(order)}
        return MoveOutcome(after, [] if done else self.observe(after), float(solved), done, metrics)


def draw_scene(seed: int, side: int) -> PilImage:
    """Return a square drawing that is unlike itself everywhere: a sky, ground, and coloured shapes."""
    draw = random.Random(f"scene {seed}")
    image = Image.new("RGB", (side, side))
    pen = ImageDraw.Draw(image)
    for row in range(side):
        shade = row / side
        pen.line(
            (0, row, side, row),
            fill=(int(90 + 120 * shade), int(170 - 60 * shade), int(230 - 180 * shade)),
        )
    for _ in range(10):
        x, y, r = draw.random() * side, draw.random() * side, (0.05 + 0.1 * draw.random()) * side
        colour = tuple(draw.randrange(256) for _ in range(3))
        shape = draw.choice((pen.ellipse, pen.rectangle))
        shape((x - r, y - r, x + r, y + r), fill=colour, outline="black")
    return image
