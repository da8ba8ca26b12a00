"""Decoded media as parts of a message, in the form of OpenAI's chat completions.

An image is a PNG (lossless), a video its frames with the second of each, audio a WAV of 16 bits.
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.media_types import Audio, Decoded, PilImage, Video
from vlmrl.schema import Frame, Media

__all__ = ["as_seen", "frames_of", "image_part", "media_parts", "text_part", "turn_parts"]

Part = dict[str, Any]


def text_part(text: str) -> Part:
    """Return a text."""
    return {"type": "text", "text": text}


def image_part(image: PilImage) -> Part:
    """Return an image."""
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return {"type": "image_url", "image_url": {"url": _data_url("image/png", stream.getvalue())}}


def media_parts(media: Sequence[Decoded], frames: Sequence[Frame]) -> list[Part]:
    """Return media, numbered by kind as a prompt shows them; `frames` say in which size each was seen."""
    parts, numbers = [], {"Image": 0, "Video": 0, "Audio": 0}
    for medium, frame in zip(media, frames, strict=True):
        kind = next(kind for kind in numbers if isinstance(medium, _TYPES[kind]))
        numbers[kind] += 1
        name = f"{kind} {numbers[kind]}"
        parts += [text_part(f"{name}:"), *_shown(medium, frame, name)]
    return parts


def turn_parts(parts: Sequence[str | Media], shown: Iterator[tuple[Decoded, Frame]]) -> list[Part]:
    """Return the parts of a turn where they stand, without names; `shown` are its media, then later ones.

    A video is its frames with the second of each.
    """
    found: list[Part] = []
    for part in parts:
        found += [text_part(part)] if isinstance(part, str) else _shown(*next(shown), part.kind)
    return found


_TYPES: dict[str, type] = {"Image": PilImage, "Video": Video, "Audio": Audio}


def _shown(medium: Decoded, frame: Frame, name: str) -> list[Part]:
    if isinstance(medium, Audio):
        return [_audio_part(medium)]
    if not isinstance(medium, Video):
        return [image_part(image) for image in frames_of(medium, frame)]
    parts = []
    for still, time in zip(frames_of(medium, frame), medium.times, strict=True):
        parts += [text_part(f"{name}, {time:.2f} s:"), image_part(still)]
    return parts if medium.audio is None else [*parts, _audio_part(medium.audio)]


def frames_of(medium: PilImage | Video, frame: Frame) -> list[PilImage]:
    """Return an image, or the frames of a video, as large as the policy saw them."""
    if isinstance(medium, Video):
        return [as_seen(Image.fromarray(pixels), frame) for pixels in medium.frames]
    return [as_seen(medium, frame)]


def as_seen(image: PilImage, frame: Frame) -> PilImage:
    """Return an image as large as the policy saw it, where that is known."""
    size = frame.resized_width, frame.resized_height
    if size[0] is None or size[1] is None or size == image.size:
        return image
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC)


def _audio_part(audio: Audio) -> Part:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes((np.clip(audio.samples, -1, 1) * 32767).astype("<i2").tobytes())
    data = base64.b64encode(stream.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
