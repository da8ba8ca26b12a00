"""Media on their way to a server: within the request, or in files that both sides can read.

A file is named by its content and written once, however many requests name it: the trajectories of a
group and their turns show the same media.

Nothing is compressed (vLLM's own way for frames of videos is JPEG, which loses) and nothing is unpickled:
a video is one line of JSON, then the bytes of the frames that the trainer has. The server reads it with a
video loader of ours.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.errors import UserError
from vlmrl.media_types import Audio, Decoded, Video

__all__ = ["lend"]

LOADER = "vlmrl"
"""Name of our video loader in vLLM (`serve` registers it), with which servers read all videos."""

VllmVideo = tuple[np.ndarray, dict[str, Any]]
"""What vLLM takes for a video: frames uint8 [T, H, W, 3] and the metadata that transformers takes."""

Part = dict[str, str]
"""A medium as an entry of a request's `content_parts`."""

KEPT = 2**30
"""Bytes of files of which a process removes those that no request in flight names."""


def make_shared(inside: str | Path | None) -> tempfile.TemporaryDirectory[str] | None:
    """Make the folder that all servers read and all ranks have a folder of their own in; None: none.

    Raises:
        UserError: nothing can be written there.
    """
    if inside is None:
        return None
    try:
        return tempfile.TemporaryDirectory(prefix="vlmrl-media-", dir=inside)
    except OSError as error:
        raise UserError(f"engine option media_folder: {error}") from error


class MediaFolder:
    """Files of media that this process has written for its servers; used by many threads."""

    def __init__(self, folder: Path, limit: int = KEPT) -> None:
        """Keep at most `limit` bytes in `folder`, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._limit = folder.resolve(), limit
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._held = 0
        self._users: dict[str, int] = {}

    @contextmanager
    def lend(self, media: Sequence[Decoded]) -> Iterator[list[Part]]:
        """Give the parts of a request; their files stay until the end of this block.

        A medium for which the folder has no room goes within the request.
        """
        names: list[str] = []
        try:
            yield [self._part(medium, names) for medium in media]
        finally:
            with self._lock:
                for name in names:
                    self._users[name] -= 1

    def _part(self, medium: Decoded, names: list[str]) -> Part:
        kind, mime, data = _encode(medium)
        name = hashlib.blake2b(data, digest_size=20, person=kind.encode()).hexdigest()
        with self._lock:
            if name not in self._sizes and not self._write(name, data):
                return _inline(kind, mime, data)
            self._sizes[name] = self._sizes.pop(name)  # the last one used
            self._users[name] = self._users.get(name, 0) + 1
            names.append(name)
        return {"type": f"{kind}_url", "url": (self._folder / name).as_uri()}

    def _write(self, name: str, data: bytes) -> bool:
        """Write a file, and say whether there was room for it."""
        if not self._make_room(len(data)):
            return False
        try:
            (self._folder / name).write_bytes(data)
        except OSError:  # full
            (self._folder / name).unlink(missing_ok=True)
            return False
        self._sizes[name] = len(data)
        self._held += len(data)
        return True

    def _make_room(self, size: int) -> bool:
        """Remove unused files until `size` more bytes fit, and say whether they do."""
        if self._held + size > self._limit:
            for name in [name for name in self._sizes if not self._users[name]]:
                (self._folder / name).unlink(missing_ok=True)
                self._held -= self._sizes.pop(name)
                del self._users[name]
                if self._held + size <= self._limit:
                    break
        return self._held + size <= self._limit


@contextmanager
def lend(media: Sequence[Decoded], folder: MediaFolder | None) -> Iterator[list[Part]]:
    """Give the parts of a request, which are good until the end of this block.

    Without a folder whole media are in them.
    """
    if folder is None:
        yield [_inline(*_encode(medium)) for medium in media]
        return
    with folder.lend(media) as parts:
        yield parts


def _encode(medium: Decoded) -> tuple[str, str, bytes]:
    """Return kind, MIME type and bytes: the form that costs both sides the least time."""
    buffer = io.BytesIO()
    if isinstance(medium, Audio):
        import soundfile  # with the extra `audio`, which whoever decoded this has

        soundfile.write(buffer, medium.samples, medium.rate, format="WAV", subtype="FLOAT")
        return "audio", "audio/wav", buffer.getvalue()
    if isinstance(medium, Video):
        return "video", "video/x-vlmrl", pack(as_seen(medium))
    medium.save(buffer, "BMP")
    return "image", "image/bmp", buffer.getvalue()


def _inline(kind: str, mime: str, data: bytes) -> Part:
    return {
        "type": f"{kind}_url",
        "url": f"data:{mime};base64,{base64.b64encode(data).decode()}",
    }


# --------------------------------------------------------------------------------- videos


def as_seen(video: Video) -> VllmVideo:
    """Return the video for vLLM as the trainer's model sees it: no frame left out or sampled again."""
    seen = video.paired()
    return seen.frames, {**seen.metadata, "do_sample_frames": False}


def pack(video: VllmVideo) -> bytes:
    """Return frames and metadata as bytes; `unpack` turns them back."""
    frames, metadata = video
    head = json.dumps({"shape": frames.shape, "metadata": metadata})
    return head.encode() + b"\n" + frames.tobytes()


def unpack(data: bytes) -> VllmVideo:
    """Return the frames and metadata that were packed.

    Raises:
        ValueError: these bytes are not a packed video.
    """
    head, _, pixels = data.partition(b"\n")
    try:
        told = json.loads(head)
        shape, metadata = told["shape"], told["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("expected a video as vlmrl packs it, got other data") from error
    frames = np.frombuffer(bytearray(pixels), np.uint8).reshape(shape)  # writable
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"expected frames [T, H, W, 3], got {list(frames.shape)}")
    return frames, metadata


def register() -> None:
    """Make vLLM read videos that were packed; in every process that answers requests."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

    @VIDEO_LOADER_REGISTRY.register(LOADER)
    class Packed(VideoLoader):
        @classmethod
        def load_bytes(cls, data: bytes, **_: Any) -> VllmVideo:
            return unpack(data)
