"""Frame sampling: which frames of a video are taken, and at what size, by the rules of qwen-vl-utils.

From a video with an even frame rate it takes exactly the frames that `qwen_vl_utils.fetch_video` takes;
from one with an uneven rate those nearest to even steps in time, where an index would be wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vlmrl.config import VideoConfig
from vlmrl.errors import MediaError

FACTOR = 2
"""Frames come in pairs: a patch of the model spans two."""
EVEN = 0.25
"""Stamps this share of a step away from an even grid still count as even (containers round them)."""
SLACK = 1e-6
"""Seconds by which a stamp may miss a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A video's frames in time: `stamps` float64 [N], seconds from the first frame on, increasing.

    The last frame is shown until `end`. `rate` is what the container says, 0 if it says nothing.
    """

    stamps: np.ndarray
    end: float
    rate: float = 0.0

    @property
    def fps(self) -> float:
        """Frames per second: the container's where the stamps agree with it, else the mean."""
        count = len(self.stamps)
        if self.rate > 0 and self.is_even(self.rate):
            return self.rate
        if count > 1 and self.is_even(step := (count - 1) / float(self.stamps[-1])):
            return step
        return count / self.end if self.end > 0 else 1.0

    def is_even(self, fps: float) -> bool:
        """Return whether all frames are on a grid of this rate."""
        grid = np.arange(len(self.stamps)) / fps
        return bool(np.all(np.abs(self.stamps - grid) <= EVEN / fps))


@dataclass(frozen=True, slots=True, eq=False)
class FrameChoice:
    """Frames to take: `indices` int64 [T] into the video, `times` in seconds from the cut's start."""

    indices: np.ndarray
    times: tuple[float, ...]
    duration: float
    """Length of the cut in seconds."""


def choose(
    line: Timeline, config: VideoConfig, start: float | None = None, end: float | None = None
) -> FrameChoice:
    """Choose the frames to take between `start` and `end` (seconds; None: the video's own).

    Raises:
        MediaError: there is no time between the two, or none of it is in the video.
    """
    since = max(0.0, start or 0.0)
    until = line.end if end is None else min(end, line.end)
    if since >= until:
        raise MediaError(
            f"nothing is between {start or 0:g} s and {end} s: it is {line.end:.3f} s long"
        )
    first = int(np.searchsorted(line.stamps, since - SLACK))
    last = int(np.searchsorted(line.stamps, until + SLACK, side="right")) - 1
    if first > last:  # between two frames: the one on display
        first = last
    indices = _spread(line, first, last, until - since, config)
    times = np.maximum(line.stamps[indices] - since, 0.0)
    return FrameChoice(indices, tuple(times.tolist()), until - since)


def _spread(
    line: Timeline, first: int, last: int, seconds: float, config: VideoConfig
) -> np.ndarray:
    total, fps = last - first + 1, line.fps
    even = line.is_even(fps)
    wanted = (total / fps if even else seconds) * config.fps
    least = math.ceil(config.min_frames / FACTOR) * FACTOR
    most = config.max_frames // FACTOR * FACTOR
    count = math.floor(min(max(wanted, least), most, total) / FACTOR) * FACTOR
    count = max(1, count)  # a video of one frame, or a ceiling of one
    if even:  # torch.linspace(...).round() is what qwen-vl-utils does, in float32
        return np.linspace(first, last, count, dtype=np.float32).round().astype(np.int64)
    if count >= total - 1:
        return np.arange(first, last + 1)
    targets = np.linspace(line.stamps[first], line.stamps[last], count)
    right = np.clip(
        np.searchsorted(line.stamps, targets), first + 1 if last > first else first, last
    )
    left = np.maximum(right - 1, first)
    nearer = np.where(targets - line.stamps[left] <= line.stamps[right] - targets, left, right)
    return np.unique(nearer)


def fit(width: int, height: int, count: int, config: VideoConfig) -> tuple[int, int]:
    """Return the (width, height) of each of `count` frames: their own if within the budget, else less.

    The budget of one frame is the smaller of `max_pixels` and two shares of `total_pixels`; frames that
    are shrunk get sides that are multiples of `size_divisor`.
    """
    factor = config.size_divisor
    limit = max(min(config.max_pixels, config.total_pixels / count * FACTOR), factor**2)
    wide, high = (max(factor, round(side / factor) * factor) for side in (width, height))
    if wide * high <= limit:
        return width, height
    beta = math.sqrt(width * height / limit)
    wide, high = (max(factor, math.floor(s / beta / factor) * factor) for s in (width, height))
    return wide, high
