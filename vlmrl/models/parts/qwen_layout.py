"""How a Qwen prompt is laid out: its ids after expansion with M-RoPE positions, medium by medium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vlmrl.errors import UserError
from vlmrl.media_types import Video


class Layout:
    """Ids and positions of a prompt as it grows.

    Whatever comes next begins one past the LARGEST position so far, as Qwen's own code and vLLM
    count; transformers (5.4 to at least 5.23) counts on from a video's rows and columns alone, so that
    text after a long video would share positions with its frames.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._pieces: list[torch.Tensor] = []
        self.start = 0
        """The next position."""

    @property
    def positions(self) -> torch.Tensor:
        """[3, T]: time, row, column."""
        return torch.cat(self._pieces, dim=1)

    def text(self, ids: Sequence[int]) -> None:
        """Ids at positions one after another, the same on all axes."""
        self.ids += ids
        self._pieces.append(torch.arange(self.start, self.start + len(ids)).expand(3, -1))
        self.start += len(ids)

    def grid(self, token: int, times: int, rows: int, columns: int, step: float = 1.0) -> None:
        """A placeholder for each place of a grid; frames are `step` positions apart in time."""
        place = np.indices((times, rows, columns))
        place[0] = (place[0] * step).astype(np.int64)
        places = torch.from_numpy(place.reshape(3, -1)) + self.start
        self.put([token] * places.shape[1], places)

    def put(self, ids: Sequence[int], places: torch.Tensor) -> None:
        """Ids at these positions [3, N]; whatever comes next begins one past the largest of them."""
        self.ids += ids
        self._pieces.append(places)
        self.start = int(places.max()) + 1


def runs(ids: Sequence[int], placeholders: Sequence[int]) -> list[list[int]]:
    """The ids cut into runs of text and single placeholders."""
    found: list[list[int]] = []
    for i in ids:
        if i in placeholders or not found or found[-1][0] in placeholders:
            found.append([i])
        else:
            found[-1].append(i)
    return found


def video_pixels(
    processor: Any, clips: Sequence[Video]
) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    """`pixel_values_videos` [patches, dim] and `video_grid_thw` [videos, 3] of videos, and the grids."""
    if not clips:
        return {}, []
    out = processor.video_processor(
        videos=[video.paired().frames for video in clips],
        video_metadata=[video.paired().metadata for video in clips],
        do_sample_frames=False,
        return_tensors="pt",
    )
    tensors = {key: out[key] for key in ("pixel_values_videos", "video_grid_thw")}
    return tensors, out["video_grid_thw"].tolist()


def seconds_per_grid(processor: Any, video: Video) -> float:
    """Seconds that one step of the grid in time spans, as the HF processor says (in float32)."""
    meta = video.paired().metadata
    rate = len(meta["frames_indices"]) / meta["total_num_frames"] * meta["fps"]
    return float(np.float32(processor.video_processor.temporal_patch_size / rate))


def grid_seconds(processor: Any, video: Video) -> list[float]:
    """The time of each step of the grid: the mean of the first and the last frame in it."""
    meta = video.paired().metadata
    times = [index / meta["fps"] for index in meta["frames_indices"]]
    size = processor.video_processor.temporal_patch_size
    return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]


def fitting(
    smart_resize: Callable[..., tuple[int, int]],
    video_processor: Any,
    video: Video,
    sizes: Sequence[int],
) -> tuple[int, int]:
    """(width, height) that a processor's `smart_resize` makes of a video.

    `sizes` are its leading arguments.

    Raises:
        UserError: it refuses them.
    """
    try:
        high, wide = smart_resize(
            *sizes,
            factor=video_processor.patch_size * video_processor.merge_size,
            min_pixels=video_processor.size["shortest_edge"],
            max_pixels=video_processor.size["longest_edge"],
        )
    except ValueError as error:
        width, height = video.size
        raise UserError(f"a video of {width}x{height} pixels is refused: {error}") from error
    return wide, high
