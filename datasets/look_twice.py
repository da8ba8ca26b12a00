"""Small print to read: data of the embedded default for tools, drawn on the fly, with exact truth.

An image of 336 x 336 pixels has one label of 126 x 126 with fine lines in one of four directions, each a
letter. Shown at a sixth of its size the lines are gone: 6 pixels from line to line are one then. Whoever cuts
the label out sees them, the better the closer the cut. Ink and paper differ from image to image, and the
label is grained; the splits are other drawings of the same 144 scenes (36 places, 4 letters).
"""

from __future__ import annotations

import functools
import io
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.demonstrations import cell_name
from vlmrl.errors import UserError
from vlmrl.schema import Box, Demo, DemoTurn, Frame, Media, Sample, Truth

SIDE, GRID, LABEL = 336, 8, 3
"""Pixels of the image, cells along it, and cells along the label."""
PERIOD = SIDE / GRID / 7
"""Pixels from line to line: a whole number of lines in a cell, so that cuts of one size begin alike."""
FADE = 24
"""Pixels of the label's edge in which the lines fade."""
GRAIN = 20
"""Deviation of the label's pixels, in shades, so that lines that are all but gone cannot be read."""
LINES = {"A": (0, 1), "B": (1, 0), "C": (1, 1), "D": (1, -1)}
"""Letter -> lines for each PERIOD to the right, and for each down."""
QUESTION = "How do the fine lines of the label run: A level, B upright, C rising or D falling?"
COUNTS = {"train": 4000, "demos": 8000, "val": 96, "test": 200}


@dataclass(frozen=True)
class LookTwice(Card):
    """Fine lines on a label: answer at once, or crop the label and look."""

    origin: ClassVar[str] = "drawn by this file"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    media: ClassVar[tuple[str, ...]] = ("image",)
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "format")

    look: float = 0.7
    """Share of demonstrations that crop before they answer."""
    loose: int = 3
    """Move a demonstration's crop by up to this many of 8 cells sideways, up or down; 0: exact."""
    count: int | None = None
    """Scenes per split; None: train 4000, demos 8000, val 96, test 200."""
    seed: int = 0
    """Seed of the scenes."""

    def __post_init__(self) -> None:
        if not 0 <= self.look <= 1:
            raise ValueError(f"look: expected a share from 0 to 1, got {self.look}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: expected at least 1, got {self.count}")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each scene; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(
                f"card 'look_twice' has no split {split!r}; there are: {', '.join(COUNTS)}"
            )
        return [
            {"id": f"look-{split}-{i}", "split": split, "index": i}
            for i in range(self.count or COUNTS[split])
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the scene of a row and ask about it."""
        key = f"{self.seed} {row['split']} {row['index']}"
        rng = random.Random(f"scene {key}")
        letter, box = _scene(rng)
        image = _image(letter, box, rng)
        return Sample(
            id=row["id"],
            source=source,
            parts=(Media("image", data=image), QUESTION),
            truth=Truth(text=(letter,), boxes=(box,)),
            template="answer_only",
            demo=self._demo(letter, box, random.Random(f"demo {key}")),
        )

    def corpus(self) -> list[str]:
        """Return the question, with demonstrations as the model is to write them."""
        shown = Frame(
            SIDE, SIDE, resized_width=SIDE // 6, resized_height=SIDE // 6, space="resized"
        )
        return demonstrations.corpus(self, self.rows("demos")[:200], shown)

    def _demo(self, letter: str, box: Box, rng: random.Random) -> Demo:
        """Return a right answer; before it a crop that is as loose as the card says, or none.

        The crop is moved and never widened: the lines are then equally fine in every crop. A small model
        reads no lines whose fineness and proportions change from crop to crop.
        """
        if rng.random() >= self.look:
            return Demo(text=letter)
        crop = DemoTurn("crop", {"bbox_2d": _beside(box, self.loose, rng)}, thought=cell_name(box))
        return Demo(text=letter, turns=(crop,))


def _scene(rng: random.Random) -> tuple[str, Box]:
    """Draw a letter, and where its label is."""
    x, y = rng.randint(0, GRID - LABEL), rng.randint(0, GRID - LABEL)
    box = Box(x / GRID, y / GRID, (x + LABEL) / GRID, (y + LABEL) / GRID)
    return rng.choice(list(LINES)), box


def _beside(box: Box, cells: int, rng: random.Random) -> Box:
    """Move a box by up to `cells` sideways, and as many up or down; it stays in the image."""
    x, y = (
        min(max(round(corner * GRID) + rng.randint(-cells, cells), 0), GRID - LABEL) / GRID
        for corner in (box.x1, box.y1)
    )
    return Box(x, y, x + LABEL / GRID, y + LABEL / GRID)


def _image(letter: str, box: Box, rng: random.Random) -> bytes:
    """Draw the scene as a BMP file (uncompressed: the quickest to write and to read)."""
    scene = _background(rng.randint(40, 80)).copy()
    left, top, right, bottom = (round(v * SIDE) for v in box.xyxy)
    paper = rng.randint(200, 250)
    ink = rng.randint(0, paper // 2)
    label = ink + (paper - ink) * (_print(letter, right - left) + 1) / 2
    label += np.random.default_rng(rng.getrandbits(32)).normal(0, GRAIN, label.shape)
    scene[top:bottom, left:right] = label.round().clip(0, 255).astype(np.uint8)[:, :, None]
    buffer = io.BytesIO()
    Image.fromarray(scene).save(buffer, format="BMP")
    return buffer.getvalue()


@functools.lru_cache(maxsize=len(LINES))
def _print(letter: str, side: int) -> np.ndarray:
    """Return [side, side] float: the lines as a wave from -1 to 1; they fade towards the edge.

    An edge that cuts lines off would tell of them when they are too small to be seen.
    """
    along, down = LINES[letter]
    places = np.arange(side) * (2 * math.pi / PERIOD)
    rising = np.clip(np.minimum(np.arange(side), np.arange(side)[::-1]) / FADE, 0, 1)
    fade = np.sin(rising * math.pi / 2) ** 2
    return np.sin(along * places[None, :] + down * places[:, None]) * fade * fade[:, None]


@functools.lru_cache(maxsize=64)
def _background(shade: int) -> np.ndarray:
    """Return [336, 336, 3] uint8: red falls by 210 levels to the right, blue to the bottom."""
    fall = np.linspace(220, 10, SIDE).round().astype(np.uint8)
    image = np.full((SIDE, SIDE, 3), shade, np.uint8)
    image[:, :, 0] = fall[None, :]
    image[:, :, 2] = fall[:, None]
    return image
