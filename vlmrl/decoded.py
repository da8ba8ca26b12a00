"""Media as they come out of the decoder: a picture (a PIL image), a clip, a recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

Picture = Image.Image
"""A picture: upright 8-bit RGB."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Sound: `samples` float32 [N], mono, at `rate` samples a second. Example: 1 s is N == rate."""

    samples: np.ndarray
    rate: int

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Frames that were taken from a clip: `frames` uint8 [T, H, W, 3], upright RGB.

    `times` are the seconds of each frame from the start of the (cut) clip, increasing; `duration` its
    length in seconds. `indices` are the frames' numbers in the source file, `total` how many that has,
    `fps` its frames a second (the mean, where they are uneven). `original` is the (width, height) that
    upright frames have in the file; they may have been made smaller. `sound` is the clip's own, where it
    was asked for and there is any.
    """

    frames: np.ndarray
    times: tuple[float, ...]
    duration: float
    indices: tuple[int, ...]
    total: int
    fps: float
    original: tuple[int, int]
    sound: Recording | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, as a picture's."""
        return self.frames.shape[2], self.frames.shape[1]


Decoded = Picture | Clip | Recording


def described(decoded: Decoded) -> str:
    """What a decoded medium is, for a person."""
    if isinstance(decoded, Recording):
        return f"{decoded.duration:.2f} s at {decoded.rate} Hz"
    size = "{} x {} upright pixels".format(*decoded.size)
    if isinstance(decoded, Clip):
        return f"{len(decoded.frames)} frames of {decoded.duration:.2f} s, {size}"
    return size
