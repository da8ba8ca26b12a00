"""Small videos that tests write themselves, each frame of which tells its number."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from vlmrl.schema.media import Video


def frame(number: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """A grey that says which frame it is, with a red top left corner; [H, W, 3] uint8."""
    pixels = np.full((size[1], size[0], 3), 10 + 8 * (number % 30), np.uint8)
    pixels[: size[1] // 4, : size[0] // 4] = (220, 20, 20)
    return pixels


def write_video(
    path: Path,
    stamps_ms: list[int],
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    options: dict[str, str] | None = None,
) -> Path:
    """A file with one frame at each of these milliseconds."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=Fraction(1000))
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.gop_size = 8
        stream.options = {"crf": "1", "preset": "ultrafast"} if codec == "libx264" else {}
        for number, stamp in enumerate(stamps_ms):
            made = av.VideoFrame.from_ndarray(frame(number, size), format="rgb24")
            made.pts, made.time_base = stamp, Fraction(1, 1000)
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return path


def animation(durations_ms: list[int], kind: str = "WEBP") -> bytes:
    """An animated image, losslessly."""
    images = [Image.fromarray(frame(n)) for n in range(len(durations_ms))]
    buffer = io.BytesIO()
    extra = {"lossless": True} if kind == "WEBP" else {}
    images[0].save(
        buffer, kind, save_all=True, append_images=images[1:], duration=durations_ms, **extra
    )
    return buffer.getvalue()


def numbers(frames: np.ndarray) -> list[int]:
    """Which frames these are, by their grey."""
    return [round((float(f[f.shape[0] * 3 // 4 :].mean()) - 10) / 8) for f in frames]


def video(
    count: int,
    *,
    size: tuple[int, int] = (56, 56),
    fps: float = 2.0,
    times: tuple[float, ...] | None = None,
) -> Video:
    """Noise at `fps`, or at these times, as the loader would give it."""
    width, height = size
    frames = np.random.default_rng(count).integers(0, 255, (count, height, width, 3), np.uint8)
    shown = times or tuple(n / fps for n in range(count))
    end = times[-1] + 0.5 if times else count / fps
    return Video(frames, shown, end, tuple(range(count)), count, count / end, size)
