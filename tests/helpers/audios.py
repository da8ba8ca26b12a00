"""Small recordings that tests write themselves."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np


def tone(hertz: float, seconds: float, rate: int = 16000) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def muxed(
    container: str, codec: str, samples: np.ndarray, rate: int, video_from: float | None = None
) -> bytes:
    """A file that FFmpeg writes; with an image track that begins at `video_from` seconds."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        sound = out.add_stream(codec, rate=rate, layout="mono")
        if video_from is not None:
            images = out.add_stream("libx264", rate=10, width=32, height=32, pix_fmt="yuv420p")
            for i in range(10):
                image = av.VideoFrame(32, 32, "yuv420p")
                image.pts, image.time_base = i + round(10 * video_from), Fraction(1, 10)
                out.mux(images.encode(image))
            out.mux(images.encode())
        for at in range(0, len(samples), 1000):
            block = np.ascontiguousarray(samples[None, at : at + 1000])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
            out.mux(sound.encode(frame))
        out.mux(sound.encode())
    return buffer.getvalue()
