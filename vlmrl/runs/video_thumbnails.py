"""Views of a video for a person: a strip of its frames and a small animated image."""

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
"""Synthetic videos below this are enlarged and animated without loss: they consist of edges."""


def store(folder: Path, video: Video, track: Sequence[float] = ()) -> dict[str, Any]:
    """Store a video's strip and animated image in `folder`, each once by its content.

    The strip shows frames evenly over the video, or those nearest to the times of a `track`
    (seconds), so that each of its boxes can be seen on its own frame. The returned row has the file names as
    `thumbnail` and `motion`, the seconds of the strip's frames as `times`, and the video's `duration`.
    """
    taken = _spread(len(video.frames), STRIP_FRAMES)
    if track:
        wanted = [track[n] for n in _spread(len(track), STRIP_FRAMES)]
        gaps = np.abs(np.array(video.times)[:, None] - np.array(wanted))
        taken = sorted(set(gaps.argmin(0).tolist()))
    digest = hashlib.sha256(repr((video.frames.shape, video.times, taken)).encode())
    digest.update(video.frames.tobytes())
    name = digest.hexdigest()[:24]
    strip, motion = f"{name}.jpg", f"{name}.webp"
    if not (folder / motion).exists():
        write_bytes(folder / strip, _strip([_shrink(video.frames[n], STRIP_SIDE) for n in taken]))
        write_bytes(folder / motion, _animate(video))
    return {
        "thumbnail": strip,
        "motion": motion,
        "times": [video.times[n] for n in taken],
        "duration": video.duration,
    }


def _spread(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def _shrink(frame: np.ndarray, side: int) -> Image.Image:
    image = Image.fromarray(frame)
    if max(image.size) < TOY_SIDE:
        scale = TOY_SIDE // max(image.size)
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image


def _strip(images: list[Image.Image]) -> bytes:
    """Return a JPEG of the images, all of the same size, in a row."""
    width, height = images[0].size
    strip = Image.new("RGB", (width * len(images), height))
    for place, image in enumerate(images):
        strip.paste(image, (place * width, 0))
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=82)
    return out.getvalue()


def _animate(video: Video) -> bytes:
    """Return an animated WebP of a few frames with the video's own timing."""
    taken = _spread(len(video.frames), MOVING_FRAMES)
    images = [_shrink(video.frames[n], MOVING_SIDE) for n in taken]
    starts = [video.times[n] for n in taken] + [video.duration]
    lasting = [max(20, round(1000 * (b - a))) for a, b in itertools.pairwise(starts)]
    moving = {"save_all": True, "append_images": images[1:], "duration": lasting, "loop": 0}
    out = io.BytesIO()
    images[0].save(out, "WEBP", **moving, lossless=max(video.size) < TOY_SIDE, quality=60)
    return out.getvalue()
