"""A clip as a person can judge it later: a strip of its frames, and a small moving picture."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.media_types import Clip
from vlmrl.system.atomic_files import write_bytes

STRIP_FRAMES, STRIP_SIDE = 8, 160
"""Most frames of a strip, and the longest side of each, pixels."""
MOVING_FRAMES, MOVING_SIDE = 32, 240
TOY_SIDE = 64
"""Drawn clips below this are enlarged, and their moving picture is exact: edges are all there is."""


def stored(folder: Path, clip: Clip, track: Sequence[float] = ()) -> dict[str, Any]:
    """Store a clip's strip and moving picture in `folder`, each once by its content.

    The strip shows frames evenly over the clip, or those nearest to the times of a `track`
    (seconds), so that each of its boxes can be seen on its own frame. The row tells the file names as
    `thumbnail` and `motion`, the seconds of the strip's frames as `times`, and the clip's `duration`.
    """
    taken = _evenly(len(clip.frames), STRIP_FRAMES)
    if track:
        wanted = [track[n] for n in _evenly(len(track), STRIP_FRAMES)]
        gaps = np.abs(np.array(clip.times)[:, None] - np.array(wanted))
        taken = sorted(set(gaps.argmin(0).tolist()))
    digest = hashlib.sha256(repr((clip.frames.shape, clip.times, taken)).encode())
    digest.update(clip.frames.tobytes())
    name = digest.hexdigest()[:24]
    strip, motion = f"{name}.jpg", f"{name}.webp"
    if not (folder / motion).exists():
        write_bytes(folder / strip, _strip([_small(clip.frames[n], STRIP_SIDE) for n in taken]))
        write_bytes(folder / motion, _moving(clip))
    return {
        "thumbnail": strip,
        "motion": motion,
        "times": [clip.times[n] for n in taken],
        "duration": clip.duration,
    }


def _evenly(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def _small(frame: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(frame)
    if max(picture.size) < TOY_SIDE:
        scale = TOY_SIDE // max(picture.size)
        return picture.resize(
            (picture.width * scale, picture.height * scale), Image.Resampling.NEAREST
        )
    picture.thumbnail((side, side))
    return picture


def _strip(pictures: list[Image.Image]) -> bytes:
    """The pictures side by side, all of the same size."""
    width, height = pictures[0].size
    strip = Image.new("RGB", (width * len(pictures), height))
    for place, picture in enumerate(pictures):
        strip.paste(picture, (place * width, 0))
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=82)
    return out.getvalue()


def _moving(clip: Clip) -> bytes:
    """An animated WebP in the clip's own time, a few frames of it."""
    taken = _evenly(len(clip.frames), MOVING_FRAMES)
    pictures = [_small(clip.frames[n], MOVING_SIDE) for n in taken]
    starts = [clip.times[n] for n in taken] + [clip.duration]
    lasting = [max(20, round(1000 * (b - a))) for a, b in itertools.pairwise(starts)]
    moving = {"save_all": True, "append_images": pictures[1:], "duration": lasting, "loop": 0}
    out = io.BytesIO()
    pictures[0].save(out, "WEBP", **moving, lossless=max(clip.size) < TOY_SIDE, quality=60)
    return out.getvalue()
