"""References to media: from what a row holds to a `Media`, and from a `Media` to its bytes.

A path is followed only inside one folder, wherever `..`, a symbolic link or an absolute path may
point; a URL is fetched only if the config allows it.
"""

from __future__ import annotations

import base64
import io
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import SYSTEM_FAULTS, DiskError, MediaError, UserError
from vlmrl.schema import Media, MediaKind

# The base64 text of a PNG, JPEG, GIF, RIFF (WebP, WAV), FLAC or Ogg file begins like this, no path does.
_BASE64_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "ZkxhQ", "T2dnU")
NEIGHBOURS = 8
"""Other files of a folder that are tried before its disk is blamed."""


@dataclass(frozen=True, slots=True)
class Access:
    """What may be opened: paths inside `root` (None: no path at all), URLs only if allowed."""

    root: str | None = None
    allow_urls: bool = False
    allow_private_urls: bool = False
    """Whether a URL may lead to this machine or a private network."""
    url_seconds: float = 20.0
    """Ceiling on the time that fetching a URL takes."""
    url_cache: str | None = None
    """Folder of fetched files; None: the user's cache."""
    max_mb: int = 1024
    """MiB that the files of a sample's media may have together."""


_given: ContextVar[Access | None] = ContextVar("access", default=None)


@contextmanager
def giving_access(access: Access) -> Iterator[None]:
    """Let a card that looks into media while it reads a row open what its source may open."""
    token = _given.set(access)
    try:
        yield
    finally:
        _given.reset(token)


def access_given(otherwise: Access) -> Access:
    """Return the access of the source whose row is read, else this one."""
    return _given.get() or otherwise


@dataclass(frozen=True, slots=True)
class Reading:
    """How media are read, and what reading those of one sample may take."""

    video: VideoConfig = field(default_factory=VideoConfig)
    audio: AudioConfig = field(default_factory=AudioConfig)
    seconds: float = 120.0
    """Ceiling on the time that decoding takes."""
    memory_mb: int = 1024
    """MiB that decoding may take."""
    max_pixels: int = 64 * 2**20
    """Pixels that the images may have together."""
    with_audio: bool = False
    """Whether videos come with their audio."""


def reference(value: object, folder: str | Path = "", kind: MediaKind = "image") -> Media:
    """Return the Media that a value of a data row stands for; nothing is opened.

    `value` is a path (a relative one starts from `folder`), an http(s) URL, a `data:` URI, base64
    text of a PNG, JPEG, GIF, WebP, WAV, FLAC or Ogg file, bytes, a Hugging Face
    `{"bytes": ..., "path": ...}`, or a PIL image. Beside `path` or `bytes`, `start` and `end` (seconds)
    select a part of a video or audio.

    Raises:
        UserError: it is none of these.
    """
    if isinstance(value, Mapping):
        whole = reference(value.get("bytes") or value.get("path"), folder, kind)
        return replace(whole, start=value.get("start"), end=value.get("end"))
    if isinstance(value, bytes):
        return Media(kind, data=value)
    if isinstance(value, str) and value:
        if value.startswith("data:"):
            return Media(kind, data=_from_base64(value.partition(",")[2]))
        if value.startswith(_BASE64_STARTS):
            return Media(kind, data=_from_base64(value))
        if value.startswith(("http://", "https://")):
            return Media(kind, url=value)
        return Media(kind, path=str(Path(folder) / value))
    if hasattr(value, "save") and hasattr(value, "mode"):  # a PIL image
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        return Media(kind, data=buffer.getvalue())
    raise UserError(
        f"expected a path, URL, data URI, base64 text or bytes for the {kind}, got "
        f"{type(value).__name__} {value!r:.60}"
    )


def open_media(media: Media, access: Access) -> BinaryIO:
    """Open the encoded bytes of a medium; the caller closes the stream.

    Raises:
        MediaError: it is missing, no regular file, unreadable, outside the root, or a URL that is not
            allowed or does not answer; the message names it.
        DiskError: no file of its folder can be read.
    """
    if media.data is not None:
        return io.BytesIO(media.data)
    if media.url is not None:
        if not access.allow_urls:
            raise MediaError(f"{media.url}: URLs are not fetched unless data.allow_urls is true")
        limits = (access.url_seconds, access.max_mb * 2**20, access.allow_private_urls)
        from vlmrl.media.download import download  # brings http and ssl, needed only here

        return io.BytesIO(download(media.url, *limits, access.url_cache))
    path = locate(media, access)
    if path is None:
        raise MediaError(f"{media.name}: has neither path, bytes nor URL")
    try:
        return path.open("rb")
    except OSError as error:
        check_disk(path)
        raise MediaError(f"{media.path}: {error.strerror}") from error


def locate(media: Media, access: Access) -> Path | None:
    """Return the real path of a medium's file, which exists inside the root; None if it has no path.

    Raises:
        MediaError: it is missing, no regular file, or outside the root; the message names it.
        DiskError: no file of its folder can be read.
    """
    if media.path is None:
        return None
    path = confine(media.path, access.root)
    try:
        if not path.is_file():  # a pipe would block
            what = "is a directory" if path.is_dir() else "no such file"
            raise MediaError(f"{media.path}: {what}")
    except OSError as error:
        check_disk(path)
        raise MediaError(f"{media.path}: {error.strerror}") from error
    return path


def check_disk(path: Path) -> None:
    """Raise if neither this file nor any other of its folder can be read.

    A decoder may raise any OSError over what a file holds, so an errno proves nothing; reading does.

    Raises:
        DiskError: the disk or the system is at fault, not the file.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # unlike those of Path they never raise
        return  # reading from a pipe would wait for a writer
    fault = _try(path)
    if fault is None or fault.errno not in SYSTEM_FAULTS:
        return
    try:
        with os.scandir(path.parent) as entries:
            others = (
                Path(e) for e in entries if e.is_file(follow_symlinks=False) and e.name != path.name
            )
            tried = [_try(other) for other in itertools.islice(others, NEIGHBOURS)]
    except OSError as error:
        raise DiskError(error.errno, f"{error.strerror}: {path.parent} cannot be listed") from error
    if tried and all(tried):
        raise DiskError(fault.errno, f"{fault.strerror}: no file in {path.parent} can be read")


def _try(path: Path) -> OSError | None:
    """Read the first and the last byte of a file; return what went wrong."""
    try:
        with path.open("rb", buffering=0) as file:
            if file.read(1):
                file.seek(-1, os.SEEK_END)
                file.read(1)
    except OSError as error:
        return error
    except ValueError:  # no name that a file could have
        return None
    return None


def confine(path: str, root: str | None) -> Path:
    """Return the real path of a file that must be inside `root`, links followed.

    Raises:
        MediaError: it is elsewhere, or there is no root; the message names the file and the root.
    """
    if root is None:
        raise MediaError(f"{path}: no folder for media is known; set data.media_root")
    try:  # as texts: pathlib takes three times as long, which shows with small images
        real, home = os.path.realpath(path), os.path.realpath(root)
    except (OSError, ValueError) as error:  # a null byte
        raise MediaError(f"{path!r}: not a usable path: {error}") from error
    if os.path.commonpath((real, home)) != home:
        raise MediaError(f"{path}: is outside {home}, where this source's media must be")
    return Path(real)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise MediaError(f"base64 text {text[:20]!r}...: {error}") from error
