"""The layout of a Qwen prompt: expanded ids with M-RoPE positions, medium by medium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vlmrl.errors import UserError
from vlmrl.media_types import Video


class PromptLayout:
    """The ids and positions of a prompt while it is being laid out.

    The next piece begins one past the LARGEST position so far, as in Qwen's own code and vLLM;
    transformers (5.4 to at least 5.23) continues from a video's rows and columns alone, so that text
    after a long video would share positions with its frames.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._pieces: list[torch.Tensor] = []
        self.start = 0
        """The next position."""

    @property
    def positions(self) -> torch.Tensor:
        """The positions [3, T]: time, row, column."""
        return torch.cat(self._pieces, dim=1)

    def text(self, ids: Sequence[int]) -> None:
        """Append ids at consecutive positions, the same on all axes."""
        self.ids += ids
        self._pieces.append(torch.arange(self.start, self.start + len(ids)).expand(3, -1))
        self.start += len(ids)

    def grid(self, token: int, times: int, rows: int, columns: int, step: float = 1.0) -> None:
        """Append a placeholder per cell of a grid; frames are `step` positions apart in time."""
        place = np.indices((times, rows, columns))
        place[0] = (place[0] * step).astype(np.int64)
        places = torch.from_numpy(place.reshape(3, -1)) + self.start
        self.put([token] * places.shape[1], places)

    def put(self, ids: Sequence[int], places: torch.Tensor) -> None:
        """Append ids at these positions [3, N]; the next piece begins one past the largest of them."""
        self.ids += ids
        self._pieces.append(places)
        self.start = int(places.max()) + 1


def split_runs(ids: Sequence[int], placeholders: Sequence[int]) -> list[list[int]]:
    """Split the ids into runs of text and single placeholders."""
    found: list[list[int]] = []
    for i in ids:
        if i in placeholders or not found or found[-1][0] in placeholders:
            found.append([i])
        else:
            found[-1].append(i)
    return found


def process_videos(
    processor: Any, videos: Sequence[Video]
) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    """Make `pixel_values_videos` [patches, dim] and `video_grid_thw` [videos, 3]; also list the grids."""
    if not videos:
        return {}, []
    out = processor.video_processor(
        videos=[video.paired().frames for video in videos],
        video_metadata=[video.paired().metadata for video in videos],
        do_sample_frames=False,
        return_tensors="pt",
    )
    tensors = {key: out[key] for key in ("pixel_values_videos", "video_grid_thw")}
    return tensors, out["video_grid_thw"].tolist()


def seconds_per_grid(processor: Any, video: Video) -> float:
    """Return the seconds that one step of the grid spans, as the HF processor computes it (float32)."""
    meta = video.paired().metadata
    rate = len(meta["frames_indices"]) / meta["total_num_frames"] * meta["fps"]
    return float(np.float32(processor.video_processor.temporal_patch_size / rate))


def grid_seconds(processor: Any, video: Video) -> list[float]:
    """Return the time of each step of the grid: the mean of its first and its last frame."""
    meta = video.paired().metadata
    times = [index / meta["fps"] for index in meta["frames_indices"]]
    size = processor.video_processor.temporal_patch_size
    return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]


def fit_video_size(
    smart_resize: Callable[..., tuple[int, int]],
    video_processor: Any,
    video: Video,
    sizes: Sequence[int],
) -> tuple[int, int]:
    """Return the (width, height) to which a processor's `smart_resize` resizes a video.

    `sizes` are the leading arguments of `smart_resize`.

    Raises:
        UserError: `smart_resize` refuses them.
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
