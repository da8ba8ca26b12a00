"""A video as a person can judge it later: a strip of its frames, and a small moving image."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.media_types import Video
from vlmrl.system.atomic_files import write_bytes

STRIP_FRAMES, STRIP_SIDE = 8, 160
"""Most frames of a strip, and the longest side of each, pixels."""
MOVING_FRAMES, MOVING_SIDE = 32, 240
TOY_SIDE = 64
"""Drawn videos below this are enlarged, and their moving image is exact: edges are all there is."""


def stored(folder: Path, video: Video, track: Sequence[float] = ()) -> dict[str, Any]:
    """Store a video's strip and moving image in `folder`, each once by its content.

    The strip shows frames evenly over the video, or those nearest to the times of a `track`
    (seconds), so that each of its boxes can be seen on its own frame. The row tells the file names as
    `thumbnail` and `motion`, the seconds of the strip's frames as `times`, and the video's `duration`.
    """
    taken = _evenly(len(video.frames), STRIP_FRAMES)
    if track:
        wanted = [track[n] for n in _evenly(len(track), STRIP_FRAMES)]
        gaps = np.abs(np.array(video.times)[:, None] - np.array(wanted))
        taken = sorted(set(gaps.argmin(0).tolist()))
    digest = hashlib.sha256(repr((video.frames.shape, video.times, taken)).encode())
    digest.update(video.frames.tobytes())
    name = digest.hexdigest()[:24]
    strip, motion = f"{name}.jpg", f"{name}.webp"
    if not (folder / motion).exists():
        write_bytes(folder / strip, _strip([_small(video.frames[n], STRIP_SIDE) for n in taken]))
        write_bytes(folder / motion, _moving(video))
    return {
        "thumbnail": strip,
        "motion": motion,
        "times": [video.times[n] for n in taken],
        "duration": video.duration,
    }


def _evenly(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def _small(frame: np.ndarray, side: int) -> Image.Image:
    image = Image.fromarray(frame)
    if max(image.size) < TOY_SIDE:
        scale = TOY_SIDE // max(image.size)
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image


def _strip(images: list[Image.Image]) -> bytes:
    """The images side by side, all of the same size."""
    width, height = images[0].size
    strip = Image.new("RGB", (width * len(images), height))
    for place, image in enumerate(images):
        strip.paste(image, (place * width, 0))
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=82)
    return out.getvalue()


def _moving(video: Video) -> bytes:
    """An animated WebP in the video's own time, a few frames of it."""
    taken = _evenly(len(video.frames), MOVING_FRAMES)
    images = [_small(video.frames[n], MOVING_SIDE) for n in taken]
    starts = [video.times[n] for n in taken] + [video.duration]
    lasting = [max(20, round(1000 * (b - a))) for a, b in itertools.pairwise(starts)]
    moving = {"save_all": True, "append_images": images[1:], "duration": lasting, "loop": 0}
    out = io.BytesIO()
    images[0].save(out, "WEBP", **moving, lossless=max(video.size) < TOY_SIDE, quality=60)
    return out.getvalue()
