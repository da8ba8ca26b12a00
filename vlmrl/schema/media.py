"""Decoded media: an image (a PIL image), a video, audio."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from PIL import Image

PilImage = Image.Image
"""An image: upright 8-bit RGB."""

TOLD = 2e-3
"""Seconds by which index / fps may miss a frame's time (containers round to milliseconds)."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Audio: `samples` float32 [N], mono, at `rate` samples per second."""

    samples: np.ndarray
    rate: int

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """Frames of a video: `frames` uint8 [T, H, W, 3], upright RGB.

    `times` are the seconds of each frame from the start of the (cut) video, increasing; `duration` is its
    length in seconds. `indices` are the frames' numbers in the source file, `total` is how many that has,
    `fps` its frames per second (the mean, where they are uneven). `original` is the (width, height) of
    upright frames in the file; `frames` may be smaller. `audio` is the video's own, if it was asked for
    and there is any.
    """

    frames: np.ndarray
    times: tuple[float, ...]
    duration: float
    indices: tuple[int, ...]
    total: int
    fps: float
    original: tuple[int, int]
    audio: Audio | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Return (width, height) in pixels, as of an image."""
        return self.frames.shape[2], self.frames.shape[1]

    @property
    def metadata(self) -> dict[str, Any]:
        """Video metadata of transformers and vLLM, where a frame's time is its index / fps.

        The indices are the file's own where they give the times, else (uneven, or cut out of a longer
        video) milliseconds.
        """
        pairs = zip(self.indices, self.times, strict=True)
        if all(abs(index / self.fps - time) <= TOLD for index, time in pairs):
            total, fps, indices = self.total, self.fps, list(self.indices)
        else:
            total, fps = max(1, round(self.duration * 1000)), 1000.0
            indices = [round(time * 1000) for time in self.times]
        return {
            "total_num_frames": total,
            "fps": fps,
            "duration": self.duration,
            "frames_indices": indices,
            "video_backend": "vlmrl",
        }

    def paired(self) -> Video:
        """Return the same with an even number of frames, the last one repeated if need be."""
        if len(self.frames) % 2 == 0:
            return self
        return replace(
            self,
            frames=np.concatenate([self.frames, self.frames[-1:]]),
            times=(*self.times, self.times[-1]),
            indices=(*self.indices, self.indices[-1]),
        )


Decoded = PilImage | Video | Audio


def kind_of(decoded: Decoded) -> Literal["image", "video", "audio"]:
    """Return the kind of a decoded medium, as in `Media.kind`."""
    if isinstance(decoded, Audio):
        return "audio"
    return "video" if isinstance(decoded, Video) else "image"


def num_bytes(decoded: Decoded) -> int:
    """Return the bytes that its pixels or samples take."""
    if isinstance(decoded, Audio):
        return decoded.samples.nbytes
    if isinstance(decoded, Video):
        return decoded.frames.nbytes + (num_bytes(decoded.audio) if decoded.audio else 0)
    return 3 * decoded.width * decoded.height


def described(decoded: Decoded) -> str:
    """Describe a decoded medium to a person."""
    if isinstance(decoded, Audio):
        return f"{decoded.duration:.2f} s at {decoded.rate} Hz"
    size = "{} x {} upright pixels".format(*decoded.size)
    if isinstance(decoded, Video):
        heard = "" if decoded.audio is None else f", with audio at {decoded.audio.rate} Hz"
        return f"{len(decoded.frames)} frames of {decoded.duration:.2f} s, {size}{heard}"
    return size
