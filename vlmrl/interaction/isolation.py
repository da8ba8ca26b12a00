"""One call of a tool inside a worker process: what it may take, and what may leave it.

A tool's result is treated like a media file from a stranger: count, pixels and characters are checked
before it crosses to the trainer, and a text keeps nothing that a terminal or a tokenizer trips over.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import pickle
import re
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl import plugins
from vlmrl.interaction.tool import Part, Refused, Shown, Tool, View
from vlmrl.media.image import to_rgb
from vlmrl.schema.media import Audio, Decoded, PilImage, Video, num_bytes

# --------------------------------------------------------------------------------------------------
# Media that worker processes read from files: written once, however often tools are called.
#
# What crosses to a worker at a call is a path and a shape. A file is removed when its image, video or
# audio is no longer used by anyone.


CACHED = 8
"""Images that a worker keeps from one call to the next."""


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in a file: uint8 [H, W, 3] of an image, [T, H, W, 3] of a video, float32 [N] of audio."""

    path: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedView:
    """A view without its pixels: `stored[i]` belongs to `view.shown[i]`; None: it is cut from another."""

    view: View
    stored: tuple[SharedArray | None, ...]

    def load(self) -> View:
        """Return the view with its media; images are kept for the next calls of this process."""
        shown = []
        for item, stored in zip(self.view.shown, self.stored, strict=True):
            medium: Decoded = item.medium
            if stored is not None and isinstance(medium, Video):
                medium = replace(medium, frames=_map(stored))
            elif stored is not None and isinstance(medium, Audio):
                medium = replace(medium, samples=_map(stored))
            elif stored is not None:
                medium = _image(stored)
            shown.append(replace(item, medium=medium))
        return replace(self.view, shown=tuple(shown))


class SharedMediaFolder:
    """A temporary folder of media; `close` removes it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vlmrl-tools-")
        self._numbers = itertools.count()
        self._known: dict[int, SharedArray] = {}
        self._lock = threading.Lock()

    def share(self, view: View) -> SharedView:
        """Write what is not written yet, and return the view without its pixels."""
        shown, stored = [], []
        for item in view.shown:
            with self._lock:
                kept = None if item.original is not None else self._store(item.medium)
            shown.append(replace(item, medium=_emptied(item.medium)))
            stored.append(kept)
        return SharedView(replace(view, shown=tuple(shown)), tuple(stored))

    def close(self) -> None:
        """Remove all files."""
        self._known.clear()
        self._folder.cleanup()

    def _store(self, medium: Decoded) -> SharedArray:
        owner: Any = medium
        if isinstance(medium, Video | Audio):
            owner = medium.frames if isinstance(medium, Video) else medium.samples
        if (known := self._known.get(id(owner))) is not None:
            return known
        array = np.ascontiguousarray(owner)
        path = Path(self._folder.name, str(next(self._numbers)))
        array.tofile(path)
        stored = SharedArray(str(path), str(array.dtype), array.shape)
        self._known[id(owner)] = stored
        weakref.finalize(owner, _forget, self._known, id(owner), str(path)).atexit = False
        return stored


def _forget(known: dict[int, SharedArray], key: int, path: str) -> None:
    if key in known:
        del known[key]
        os.unlink(path)


def _emptied(medium: Decoded) -> Decoded:
    """Return a medium of the same kind without its pixels or samples."""
    if isinstance(medium, Audio):
        return replace(medium, samples=np.empty(0, np.float32))
    if isinstance(medium, Video):
        return replace(medium, frames=np.empty((0, 1, 1, 3), np.uint8))
    return Image.new("RGB", (1, 1))


def _map(stored: SharedArray) -> np.ndarray:
    return np.memmap(stored.path, stored.dtype, "r", shape=stored.shape)


@functools.lru_cache(CACHED)
def _image(stored: SharedArray) -> PilImage:
    return Image.fromarray(np.asarray(_map(stored)))


# --------------------------------------------------------------------------------------------------
# The worker processes that call tools, and what crosses to them and back.


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
    def of(cls, parts: object) -> PackedParts:
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
    tool: str, name: str, arguments: Mapping[str, object], shared: SharedView, limits: CallLimits
) -> CallReply:
    """Call a tool's function; whatever it raises but `Refused` is a fault.

    Raises:
        ValueError: its result is too large, or no part.
    """
    began = time.perf_counter()
    try:
        parts, refused = check_parts(_TOOLS[tool].call(name, arguments, shared.load()), limits), ""
    except Refused as error:
        parts, refused = (), clean(str(error))[:MAX_REFUSAL] or "refused"
    return CallReply(parts, refused, time.perf_counter() - began)


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


def check_parts(reply: Part | Sequence[Part], limits: CallLimits) -> tuple[str | Shown, ...]:
    """Return what is to be shown: texts cut, images as RGB of at most the allowed pixels.

    Raises:
        ValueError: there is too much of it.
        TypeError: something is no part.
    """
    several = isinstance(reply, Sequence) and not isinstance(reply, str)
    parts: Sequence[Any] = reply if several else [reply]  # type: ignore[assignment]
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
    medium = shown.medium
    if isinstance(medium, Image.Image):
        return replace(shown, medium=_check_image(medium, limits))
    if isinstance(medium, Audio):
        _require_audio(medium)
    elif isinstance(medium, Video):
        _require_video(medium)
    else:
        kind = type(medium).__name__
        raise TypeError(f"expected a text, an image, a Video or an Audio of a tool, got {kind}")
    return shown


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
