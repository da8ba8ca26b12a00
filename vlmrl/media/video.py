"""Videos: upright RGB frames with their times in seconds, or a MediaError that names the file.

Time zero is the first frame, whatever stamp the container gives it. To be called in a process that
may be killed (`decode.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import MediaError
from vlmrl.media.access import Access
from vlmrl.media.audio import load_video_audio
from vlmrl.media.frame_sampling import choose, fit
from vlmrl.media.image import MAX_PIXELS
from vlmrl.media.video_readers import CHUNK_BYTES, Reader, check_count, open_reader
from vlmrl.media_types import Video
from vlmrl.schema import Media

__all__ = ["load_video"]


def load_video(
    media: Media, access: Access, config: VideoConfig, audio: AudioConfig | None = None
) -> Video:
    """Return the frames that `config` asks for, between `media.start` and `media.end`.

    With `audio` also the audio of that time, if there is any.

    Raises:
        MediaError: the file cannot be opened, has no frames or too many, is damaged where frames are
            taken, or has no time between start and end, or its audio cannot be read
            (`load_video_audio`); the message names it.
    """
    try:
        reader = open_reader(media, access, config.max_source_frames)
        check_count(len(reader.line.stamps), config.max_source_frames)
        chosen = choose(reader.line, config, media.start, media.end)
        width, height = reader.size
        if width * height > MAX_PIXELS:
            raise MediaError(
                f"{width}x{height} pixels a frame exceed the limit of {MAX_PIXELS / 1e6:.0f} million"
            )
        size = fit(width, height, len(chosen.indices), config)
        frames = _gather(reader, chosen.indices, size)
    except MediaError as error:
        reason = str(error)
        named = reason if media.name in reason else f"{media.name}: {reason}"
        raise MediaError(named) from error
    line, track = reader.line, None
    if audio is not None and not reader.has_no_audio:
        since = max(0.0, media.start or 0.0)
        part = replace(media, start=since, end=since + chosen.duration)
        track = load_video_audio(part, access, audio)
    return Video(
        frames,
        chosen.times,
        chosen.duration,
        tuple(chosen.indices.tolist()),
        len(line.stamps),
        line.fps,
        reader.size,
        track,
    )


def _gather(reader: Reader, indices: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the frames [T, H, W, 3] uint8, each shrunk before the next ones are read."""
    width, height = size
    out = np.empty((len(indices), height, width, 3), np.uint8)
    done = 0
    step = max(1, CHUNK_BYTES // (3 * reader.size[0] * reader.size[1]))
    chunk: list[np.ndarray] = []
    for frame in reader.frames(indices):
        chunk.append(frame)
        if len(chunk) == step or done + len(chunk) == len(indices):
            out[done : done + len(chunk)] = _resize(chunk, size)
            done, chunk = done + len(chunk), []
    return out


def _resize(frames: list[np.ndarray], size: tuple[int, int]) -> Any:
    """Return the frames [T, H, W, 3] at this size by antialiased bicubic, in floats as `fetch_video`."""
    if frames[0].shape[1::-1] == size:
        return frames
    import torch

    out = []
    for frame in frames:
        pixels = torch.tensor(frame).permute(2, 0, 1)[None].contiguous().float()
        small = torch.nn.functional.interpolate(pixels, size[::-1], mode="bicubic", antialias=True)
        out.append(small[0].clamp_(0, 255).round_().permute(1, 2, 0).numpy())
    return out
