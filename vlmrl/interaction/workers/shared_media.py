"""Media that worker processes read from files: written once, however often tools are called.

What crosses to a worker at a call is a path and a shape. A file is removed when its image, video or
audio is no longer used by anyone.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.media_types import Audio, Decoded, PilImage, Video
from vlmrl.tools import View

__all__ = ["SharedMediaFolder", "SharedView"]

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
        for one, stored in zip(self.view.shown, self.stored, strict=True):
            medium: Decoded = one.medium
            if stored is not None and isinstance(medium, Video):
                medium = replace(medium, frames=_map(stored))
            elif stored is not None and isinstance(medium, Audio):
                medium = replace(medium, samples=_map(stored))
            elif stored is not None:
                medium = _image(stored)
            shown.append(replace(one, medium=medium))
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
        for one in view.shown:
            with self._lock:
                kept = None if one.original is not None else self._store(one.medium)
            shown.append(replace(one, medium=_emptied(one.medium)))
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
        found = SharedArray(str(path), str(array.dtype), array.shape)
        self._known[id(owner)] = found
        weakref.finalize(owner, _forget, self._known, id(owner), str(path)).atexit = False
        return found


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
