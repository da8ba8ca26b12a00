"""One call of a tool inside a worker process: what it may take, and what may leave it.

A tool's result is treated like a media file from a stranger: count, pixels and characters are checked
before it crosses to the trainer, and a text keeps nothing that a terminal or a tokenizer trips over.
"""

from __future__ import annotations

import math
import pickle
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from vlmrl import plugins
from vlmrl.interaction.workers.shared_media import SharedView
from vlmrl.media.image import to_rgb
from vlmrl.media_types import Audio, PilImage, Video, num_bytes
from vlmrl.tools import Part, Refused, Shown, Tool

__all__ = [
    "CallLimits",
    "CallReply",
    "PackedParts",
    "call",
    "check_parts",
    "clean",
    "cut",
    "limit_files",
    "prepare",
]

_TOOLS: dict[str, Tool] = {}
"""Function name -> tool, in a worker process."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MAX_SOURCE_PIXELS = 64 * 2**20
"""Pixels above which an image is refused instead of shrunk."""
MAX_REFUSAL = 500


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What a call may take and return."""

    memory_mb: int = 1024
    """MiB that a call may allocate."""
    file_mb: int = 64
    """MiB of the largest file that it may write."""
    max_parts: int = 32
    """Texts and media that it may return."""
    max_pixels: int = 1280 * 28 * 28
    """Pixels of an image that the policy is shown; a larger one is shrunk."""
    max_bytes: int = 256 * 2**20
    """Bytes that its media may have together."""
    max_chars: int = 8000
    """Characters of its text; the middle of a longer one is left out."""
    max_calls: int = 8
    """Calls of one turn that are run."""


@dataclass(frozen=True, slots=True, eq=False)
class CallReply:
    """What a call returned: texts and media in order, or why it was refused."""

    parts: tuple[str | Shown, ...]
    refused: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PackedParts:
    """Parts for another process, with the user's own files from which they are."""

    files: tuple[str, ...]
    pickled: bytes

    @classmethod
    def of(cls, parts: Any) -> PackedParts:
        """Return parts as they cross to a worker."""
        pickled = pickle.dumps(parts)
        return cls(plugins.user_files(pickled), pickled)

    def read(self) -> Any:
        """Return the parts, in a worker."""
        plugins.import_files(self.files)
        return pickle.loads(self.pickled)


def prepare(packed: PackedParts, names: Sequence[str], limits: CallLimits) -> None:
    """Make a worker process ready: its tools loaded, its files limited."""
    tools: Sequence[Tool] = packed.read()
    for tool in tools:
        tool.prepare()
    _TOOLS.update(zip(names, tools, strict=True))
    limit_files(limits)


def limit_files(limits: CallLimits) -> None:
    """Bound the files that this process may write, where the system can."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_mb * 2**20, hard))


def call(
    tool: str, name: str, arguments: Mapping[str, Any], shared: SharedView, limits: CallLimits
) -> CallReply:
    """Call a tool's function; whatever it raises but `Refused` is a fault.

    Raises:
        ValueError: its result is too large, or no part.
    """
    began = time.perf_counter()
    try:
        found, refused = check_parts(_TOOLS[tool].call(name, arguments, shared.load()), limits), ""
    except Refused as error:
        found, refused = (), clean(str(error))[:MAX_REFUSAL] or "refused"
    return CallReply(found, refused, time.perf_counter() - began)


def clean(text: str) -> str:
    """Return a text without lone surrogates and control characters; special tokens are the tokenizer's."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", whole.replace("\r\n", "\n"))


def cut(text: str, max_chars: int) -> str:
    """Return a text with its middle left out if it is longer."""
    if len(text) <= max_chars:
        return text
    half = max(0, max_chars // 2 - 30)
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[len(text) - half :]}"


def check_parts(found: Part | Sequence[Part], limits: CallLimits) -> tuple[str | Shown, ...]:
    """Return what is to be shown: texts cut, images as RGB of at most the allowed pixels.

    Raises:
        ValueError: there is too much of it.
        TypeError: something is no part.
    """
    several = isinstance(found, Sequence) and not isinstance(found, str)
    parts: Sequence[Any] = found if several else [found]  # type: ignore[assignment]
    if len(parts) > limits.max_parts:
        raise ValueError(f"expected at most {limits.max_parts} parts, got {len(parts)}")
    checked = tuple(_check_part(part, limits) for part in parts)
    size = sum(num_bytes(part.medium) for part in checked if isinstance(part, Shown))
    if size > limits.max_bytes:
        raise ValueError(f"expected media of at most {limits.max_bytes} bytes, got {size}")
    return checked


def _check_part(part: Any, limits: CallLimits) -> str | Shown:
    if isinstance(part, str):
        return cut(clean(cut(part, 2 * limits.max_chars)), limits.max_chars)
    shown = part if isinstance(part, Shown) else Shown(part)
    if isinstance(shown.medium, Image.Image):
        return replace(shown, medium=_check_image(shown.medium, limits))
    if isinstance(shown.medium, Audio):
        _require_audio(shown.medium)
        return shown
    if isinstance(shown.medium, Video):
        _require_video(shown.medium)
        return shown
    kind = type(shown.medium).__name__
    raise TypeError(f"expected a text, an image, a Video or an Audio of a tool, got {kind}")


def _check_image(image: PilImage, limits: CallLimits) -> PilImage:
    """Return an image as 8-bit RGB, shrunk if it is too large; its size is looked at first."""
    width, height = image.size
    if width < 1 or height < 1 or width * height > MAX_SOURCE_PIXELS:
        raise ValueError(f"an image of {width}x{height} pixels")
    rgb = to_rgb(image)
    rgb.load()
    scale = (limits.max_pixels / (width * height)) ** 0.5
    if scale < 1:
        size = (max(1, int(width * scale)), max(1, int(height * scale)))
        rgb = rgb.resize(size, Image.Resampling.BICUBIC)
    rgb.info = {}
    return rgb


def _require_audio(audio: Audio) -> None:
    """Require that audio is what every family takes, as decoded files are."""
    samples, rate = audio.samples, audio.rate
    if not isinstance(samples, np.ndarray) or samples.dtype != np.float32 or samples.ndim != 1:
        raise TypeError("audio: expected samples as a float32 array [N]")
    if not len(samples) or not np.isfinite(samples).all():
        raise ValueError("audio: expected finite samples, at least one")
    if not isinstance(rate, int) or rate < 1:
        raise ValueError(f"audio: expected samples per second, got {rate!r:.60}")


def _require_video(video: Video) -> None:
    frames = video.frames
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4:
        raise TypeError("a video: expected frames as a uint8 array [T, H, W, 3]")
    if not frames.size or frames.shape[3] != 3:
        raise ValueError(f"a video: expected frames [T, H, W, 3], got {list(frames.shape)}")
    if not len(video.times) == len(video.indices) == len(frames):
        raise ValueError(f"a video: expected a time and an index for each of {len(frames)} frames")
    if not all(map(math.isfinite, (*video.times, video.duration, video.fps))) or video.fps <= 0:
        raise ValueError("a video: expected finite times, a duration and frames per second above 0")
    if video.audio is not None:
        _require_audio(video.audio)
