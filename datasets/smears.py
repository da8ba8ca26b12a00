"""Drawn blood smears: one white cell among red ones, drawn on the fly, with exact truth.

A small model trains on them before it sees a few real photos of the same kind: pale ground, red
cells with a light centre, small platelets, and one white cell with dark lobes in a paler body.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image, ImageDraw

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Box, Frame, Media, Sample, Truth

WIDTH, HEIGHT = 112, 84
SCALE = 3  # drawn larger, so that edges are smooth
QUESTION = "Locate the white blood cell in this microscope image. Give its bounding box."
COUNTS = {"train": 3000, "val": 96, "test": 200}

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Smears(Card):
    """Grounding of the white blood cell in a drawn smear of 112 x 84 pixels."""

    origin: ClassVar[str] = "drawn by this file"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = tuple(COUNTS)
    media: ClassVar[tuple[str, ...]] = ("image",)
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou", "format")

    grid: int = 0
    """Cells across and down of the grid to whose lines a demonstration's box grows; 0: exact."""
    seed: int = 0
    """Seed of the smears."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each smear; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(f"card 'smears' has no split {split!r}; there are: {', '.join(COUNTS)}")
        return [{"id": f"smears-{split}-{i}"} for i in range(COUNTS[split])]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the smear of a row."""
        rng = random.Random(f"{self.seed} {row['id']}")
        image, box = _smear(rng)
        truth = Truth(boxes=(box,))
        return Sample(
            id=row["id"],
            source=source,
            parts=(Media("image", data=image), QUESTION),
            truth=truth,
            demo=demonstrations.demonstration(truth, (0.0,), rng, self.grid),
        )

    def corpus(self) -> list[str]:
        """Return the question, with demonstrations as the model is to write them."""
        return demonstrations.corpus(self, self.rows("train")[:200], Frame(WIDTH, HEIGHT))


def _smear(rng: random.Random) -> tuple[bytes, Box]:
    """Draw a smear; return it as a BMP file, and the box of its white cell in the unit square."""
    ground = _near(rng, (200, 203, 196), 12)
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), ground)
    draw = ImageDraw.Draw(image)
    red, size = _near(rng, (185, 145, 138), 15), rng.uniform(6, 9)
    for _ in range(rng.randint(10, 35)):
        _red_cell(draw, rng, red, size)
    for _ in range(rng.randint(0, 3)):
        x, y = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)
        _disc(draw, x, y, 1.2, 1.2, (120, 110, 190))
    box = _white_cell(draw, rng)
    buffer = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.BOX).save(buffer, format="BMP")
    return buffer.getvalue(), box


def _red_cell(draw: ImageDraw.ImageDraw, rng: random.Random, red: Colour, size: float) -> None:
    x, y = rng.uniform(0, WIDTH), rng.uniform(0, HEIGHT)
    rx, ry = (size * rng.uniform(0.8, 1.2) for _ in range(2))
    _disc(draw, x, y, rx, ry, _near(rng, red, 8))
    if rng.random() < 0.5:
        _disc(draw, x, y, rx / 2, ry / 2, _near(rng, (205, 185, 178), 10))


def _white_cell(draw: ImageDraw.ImageDraw, rng: random.Random) -> Box:
    rx = rng.uniform(11, 23)
    ry = rx * rng.uniform(0.85, 1.15)
    x, y = rng.uniform(0.4 * rx, WIDTH - 0.4 * rx), rng.uniform(0.4 * ry, HEIGHT - 0.4 * ry)
    body = _near(rng, rng.choice([(185, 165, 200), (190, 140, 170), (150, 120, 200)]), 15)
    _disc(draw, x, y, rx, ry, body)
    lobes = _near(rng, (110, 80, 200), 25)
    for _ in range(rng.randint(2, 5)):
        share = rng.uniform(0.35, 0.6)
        dx, dy = (rng.uniform(-0.35, 0.35) for _ in range(2))
        _disc(draw, x + dx * rx, y + dy * ry, share * rx, share * ry, _near(rng, lobes, 10))
    edges = max(0.0, x - rx), max(0.0, y - ry), min(WIDTH, x + rx), min(HEIGHT, y + ry)
    return Box(edges[0] / WIDTH, edges[1] / HEIGHT, edges[2] / WIDTH, edges[3] / HEIGHT)


def _near(rng: random.Random, colour: Colour, spread: int) -> Colour:
    r, g, b = (max(0, min(255, value + rng.randint(-spread, spread))) for value in colour)
    return r, g, b


def _disc(
    draw: ImageDraw.ImageDraw, x: float, y: float, rx: float, ry: float, colour: Colour
) -> None:
    edges = [SCALE * value for value in (x - rx, y - ry, x + rx, y + ry)]
    draw.ellipse(edges, fill=colour)
