"""Scenes of cut-outs: pictures with an alpha channel from a folder of yours, on a plain ground, exact boxes.

Any folder of PNG files does, however deep. Debian's `tuxpaint-stamps-default` makes the one that is read
unless another is named (796 photos and drawings of things, GPL-2). A hash of its name
decides in which split a cut-out occurs: things of `val` and `test` are never seen in training.
"""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.demonstrations import demonstration
from vlmrl.errors import UserError
from vlmrl.schema import Box, Media, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.system.seeds import uniform

INSTALLED = "/usr/share/tuxpaint/stamps"
"""Where Debian's package puts its cut-outs."""
COUNTS = {"train": 1000, "val": 60, "test": 200}
SHARES = {"train": (0.0, 0.7), "val": (0.7, 0.8), "test": (0.8, 1.0)}
"""Share of the cut-outs that belongs to each split, as [from, to)."""
QUESTION = "Find everything that lies on the ground, from left to right. Give the bounding boxes."
LONGER = (0.28, 0.46)
"""Longer side of a cut-out, as a share of the scene's."""
SOLID = 64
"""Alpha from which a pixel counts as part of the thing."""
KEPT = 224
"""Most pixels a side of a cut-out as it is kept in memory."""
TRIES = 200


@dataclass(frozen=True)
class Stamps(Card):
    """One to `most` cut-outs on a plain ground, and the boxes of all of them."""

    origin: ClassVar[str] = "cut-outs of yours; Debian's `tuxpaint-stamps-default` has 796"
    licence: ClassVar[str] = "see the cut-outs' own; those of Tux Paint are GPL-2"
    media: ClassVar[tuple[str, ...]] = ("image",)
    verifiers: ClassVar[tuple[str, ...]] = ("detection", "format")

    path: str = INSTALLED
    """Folder of the cut-outs."""
    side: int = 112
    """Side of the scene in pixels."""
    most: int = 3
    """Most things in a scene."""
    count: int | None = None
    """Scenes per split; None: train 1000, val 60, test 200."""
    missing: float = 0.0
    """Chance that a demonstration leaves a box out; one always stays."""
    loose: float = 0.0
    """Push each side of a demonstration's box outwards by up to this share of the image; 0: exact."""
    grid: int = 0
    """Then grow it to the lines of a grid of this many cells across and down; 0: no grid."""
    seed: int = 0
    """Seed of the scenes."""

    def __post_init__(self) -> None:
        if self.side < 28 or self.most < 1 or (self.count is not None and self.count < 1):
            raise ValueError(
                f"expected a side of at least 28, most and count of at least 1, got side {self.side}, "
                f"most {self.most}, count {self.count}"
            )
        if not 0 <= self.missing < 1 or not 0 <= self.loose < 1 or self.grid < 0:
            raise ValueError(
                f"expected missing and loose in [0, 1) and a grid of at least 0, got missing "
                f"{self.missing}, loose {self.loose}, grid {self.grid}"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each scene; nothing is drawn yet.

        Raises:
            UserError: there is no such split, or no folder of cut-outs.
        """
        if split not in COUNTS:
            raise UserError(f"card 'stamps' has no split {split!r}; there are: {', '.join(COUNTS)}")
        if not Path(self.path).expanduser().is_dir():
            raise UserError(
                f"card 'stamps': there is no folder {self.path!r} of cut-outs; install Debian's "
                f"(`apt-get install tuxpaint-stamps-default`, 161 MB) or name a folder as option 'path'"
            )
        count = self.count or COUNTS[split]
        return [{"id": f"stamps-{split}-{i}", "split": split} for i in range(count)]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Compose the scene of a row.

        Raises:
            UserError: the folder has no cut-out for its split.
        """
        rng = random.Random(f"scene {self.seed} {row['id']}")
        image, boxes = _scene(_cut_outs(self.path, row["split"]), self.side, self.most, rng)
        truth = Truth(boxes=boxes)
        rng = random.Random(f"demonstration {self.seed} {row['id']}")
        kept = tuple(box for box in boxes if rng.random() >= self.missing) or (rng.choice(boxes),)
        steps = (0.0, self.loose / 2, self.loose)
        return Sample(
            id=row["id"],
            source=source,
            parts=(Media("image", data=image), QUESTION),
            truth=truth,
            template="answer_only",
            demo=demonstration(Truth(boxes=kept), steps, rng, self.grid),
        )

    def corpus(self) -> list[str]:
        """Return the question, with demonstrations as the model is to write them."""
        return demonstrations.corpus(self, self.rows("train")[:200])

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write a few discs as cut-outs."""
        y, x = np.mgrid[-1:1:40j, -1:1:40j]
        for number in range(24):
            pixels = np.full((40, 40, 4), 10 * number, np.uint8)
            pixels[..., 3] = 255 * (x**2 + y**2 < 0.8)
            Image.fromarray(pixels).save(folder / f"disc_{number}.png")
        return {"path": str(folder), "count": 4}


@functools.lru_cache
def _cut_outs(folder: str, split: str) -> tuple[PilImage, ...]:
    """Return the cut-outs of a split, each trimmed to what can be seen of it."""
    low, high = SHARES[split]
    root = Path(folder).expanduser()
    files = sorted(root.rglob("*.png"))
    chosen = (f for f in files if low <= uniform(f.relative_to(root).as_posix()) < high)
    stamps = tuple(stamp for file in chosen if (stamp := _cut_out(file)) is not None)
    if not stamps:
        raise UserError(f"{folder}: expected PNG files with an alpha channel for {split}, got none")
    return stamps


def _cut_out(file: Path) -> PilImage | None:
    """Return a picture trimmed to its solid part; None: it is transparent nowhere, or all over."""
    with Image.open(file) as opened:
        picture = opened.convert("RGBA")
    solid = picture.getchannel("A").point(lambda a: 255 * (a >= SOLID))
    edges = solid.getbbox()
    if edges is None or solid.getextrema()[0] == 255:
        return None
    picture = picture.crop(edges)
    picture.thumbnail((KEPT, KEPT))
    return picture


def _scene(
    cut_outs: Sequence[PilImage], side: int, most: int, rng: random.Random
) -> tuple[bytes, tuple[Box, ...]]:
    """Lay cut-outs on a ground, none over another; return a BMP file and boxes from left to right."""
    scene = _ground(side, rng)
    taken: list[tuple[int, int, int, int]] = []
    wanted = rng.randint(1, most)
    for _ in range(TRIES):
        if len(taken) == wanted:
            break
        picture = rng.choice(cut_outs)
        scale = side * rng.uniform(*LONGER) / max(picture.size)
        width, height = (max(4, round(pixels * scale)) for pixels in picture.size)
        x, y = rng.randint(0, side - width), rng.randint(0, side - height)
        edges = (x, y, x + width, y + height)
        if not any(_overlap(edges, other) for other in taken):
            picture = picture.resize((width, height), Image.Resampling.BOX)
            scene.paste(picture, (x, y), picture)
            taken.append(edges)
    buffer = io.BytesIO()
    scene.save(buffer, format="BMP")
    ordered = sorted(taken, key=lambda edges: edges[0] + edges[2])
    return buffer.getvalue(), tuple(
        Box(x1 / side, y1 / side, x2 / side, y2 / side) for x1, y1, x2, y2 in ordered
    )


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ground(side: int, rng: random.Random) -> PilImage:
    """Draw a ground that goes from one colour to another near it, grained."""
    noise = np.random.default_rng(rng.getrandbits(32))
    start = noise.uniform(40, 215, 3)
    end = start + noise.uniform(-40, 40, 3)
    angle = noise.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    share = (1 + (x * np.cos(angle) + y * np.sin(angle)) / np.sqrt(2)) / 2
    pixels = start + share[..., None] * (end - start) + noise.normal(0, 4, (side, side, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
