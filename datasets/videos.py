"""Drawn videos: a square wanders about and is red for a while; when? Drawn on the fly, with exact truth.

A video has `frames` images, one a second, of `size` x `size` pixels: a square of two sevenths of
the side moves in blue on a grey that differs from video to video, and is red from one whole second to
another. A hash of its course decides in which split a video may occur, so that no video is in two
splits, whatever the seed.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Frame, Media, Sample, Span, Truth
from vlmrl.system.seeds import uniform

QUESTION = "When is the square red?"
RED, BLUE = (235, 45, 45), (60, 90, 245)
CELLS = 7
SHORTEST, LONGEST = 3, 9
COUNTS = {"train": 2000, "demos": 2000, "val": 96, "test": 200}
# Share of all videos that belongs to each split, as [from, to).
_SHARES = {"train": (0.0, 0.4), "demos": (0.4, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}


@dataclass(frozen=True, slots=True)
class Course:
    """The contents of a video: the square's cells [frame], when it is red, the background's grey."""

    cells: tuple[tuple[int, int], ...]
    start: int
    end: int
    grey: int


@dataclass(frozen=True)
class Videos(Card):
    """When a wandering square is red, in seconds."""

    origin: ClassVar[str] = "drawn by this file"
    licence: ClassVar[str] = "Apache-2.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    media: ClassVar[tuple[str, ...]] = ("video",)
    verifiers: ClassVar[tuple[str, ...]] = ("temporal_iou", "format")

    frames: int = 16
    """Frames of a video, one a second, at least 10; `data.video.fps: 1` shows them all."""
    size: int = 28
    """Side of a frame in pixels, a multiple of 7, at least 14."""
    count: int | None = None
    """Videos per split; None: train 2000, demos 2000, val 96, test 200."""
    loose: int = 2
    """Push each end of a demonstration's span outwards by up to this many seconds; 0: exact."""
    seed: int = 0
    """Seed of the videos."""

    def __post_init__(self) -> None:
        if self.frames <= LONGEST:
            raise ValueError(f"frames: expected more than {LONGEST}, got {self.frames}")
        if self.size < 14 or self.size % CELLS:
            raise ValueError(f"size: expected a multiple of {CELLS} from 14 on, got {self.size}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: expected at least 1, got {self.count}")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one small dictionary for each video; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(f"card 'videos' has no split {split!r}; there are: {', '.join(COUNTS)}")
        return [
            {"id": f"clips-{split}-{i}", "split": split, "index": i}
            for i in range(self.count or COUNTS[split])
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the video of a row and ask about it."""
        rng = random.Random(f"{self.seed} {row['split']} {row['index']}")
        course = _course(row["split"], self.frames, rng)
        return Sample(
            id=row["id"],
            source=source,
            parts=(Media("video", data=_draw(course, self.size)), QUESTION),
            truth=Truth(spans=(Span(course.start, course.end),)),
            demo=_demo(course, self.frames, self.loose, rng),
        )

    def corpus(self) -> list[str]:
        """Return the question, with demonstrations as the model is to write them."""
        return demonstrations.corpus(self, self.rows("demos"), Frame(self.size, self.size))


def _course(split: str, frames: int, rng: random.Random) -> Course:
    """Draw the first random course of the split."""
    low, high = _SHARES[split]
    while True:
        length = rng.randint(SHORTEST, LONGEST)
        start = rng.randint(0, frames - length)
        x, y = rng.randint(0, CELLS - 2), rng.randint(0, CELLS - 2)
        cells = []
        for _ in range(frames):
            cells.append((x, y))
            x = min(CELLS - 2, max(0, x + rng.randint(-1, 1)))
            y = min(CELLS - 2, max(0, y + rng.randint(-1, 1)))
        course = Course(tuple(cells), start, start + length, rng.randint(90, 200))
        if low <= uniform(repr(course)) < high:
            return course


def _demo(course: Course, frames: int, loose: int, rng: random.Random) -> Demo:
    third = 3 * (course.start + course.end) // (2 * frames)
    start = max(0, course.start - rng.randint(0, loose))
    end = min(frames, course.end + rng.randint(0, loose))
    return Demo(thought=("early", "midway", "late")[third], answer=Truth(spans=(Span(start, end),)))


def _draw(course: Course, size: int) -> bytes:
    """Draw the video as an animated PNG file, one frame per second, barely compressed to be quick."""
    cell = size // CELLS
    pixels = np.full((len(course.cells), size, size, 3), course.grey, np.uint8)
    for second, (x, y) in enumerate(course.cells):
        colour = RED if course.start <= second < course.end else BLUE
        pixels[second, y * cell : (y + 2) * cell, x * cell : (x + 2) * cell] = colour
    count, number = len(pixels), itertools.count()
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)),
        _chunk(b"acTL", struct.pack(">II", count, 0)),
    ]
    filtered = np.pad(pixels.reshape(count, size, 3 * size), ((0, 0), (0, 0), (1, 0)))
    for second in range(count):
        control = (next(number), size, size, 0, 0, 1, 1, 0, 0)  # shown for 1/1 s
        chunks.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", *control)))
        data = zlib.compress(filtered[second].tobytes(), 1)
        if second == 0:
            chunks.append(_chunk(b"IDAT", data))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", next(number)) + data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
