"""References to media: from what a row holds to a `Media`, and from a `Media` to its bytes.

A path is followed only inside one folder, wherever `..`, a symbolic link or an absolute path may
point; a URL is fetched only where the config allows it.
"""

from __future__ import annotations

import base64
import binascii
import errno
import http.client
import io
import itertools
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import MediaError, UserError
from vlmrl.schema import Media, MediaKind

URL_SECONDS = 20.0
URL_BYTES = 64 * 2**20

# How PNG, JPEG, GIF, RIFF (WebP, WAV), FLAC and Ogg begin in base64: no path looks like that.
_BASE64_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "ZkxhQ", "T2dnU")
NEIGHBOURS = 8
"""Other files of a folder that are tried before its disk is blamed."""
# What a disk or a system at fault may say; whether it is at fault, only a trial tells.
_SYSTEM = (
    "EIO",
    "EMFILE",
    "ENFILE",
    "ENOMEM",
    "ESTALE",
    "ENOTCONN",
    "ENODEV",
    "ENXIO",
    "EREMOTEIO",
)


class DiskError(OSError):
    """The disk or the system cannot read files: not the fault of one row, so the run ends."""


@dataclass(frozen=True, slots=True)
class Access:
    """What may be opened: paths inside `root` (None: no path at all), URLs only if allowed."""

    root: str | None = None
    allow_urls: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How videos and recordings are read."""

    video: VideoConfig = field(default_factory=VideoConfig)
    audio: AudioConfig = field(default_factory=AudioConfig)
    seconds: float = 120.0
    """In which a sample's media must be decoded."""
    memory_mb: int = 1024
    """MiB that decoding a sample's videos and recordings may take."""
    with_audio: bool = False
    """Whether videos come with their sound."""


def reference(value: Any, folder: str | Path = "", kind: MediaKind = "image") -> Media:
    """The Media that a value of a data row stands for; nothing is opened.

    `value` is a path (a relative one starts from `folder`), an http(s) URL, a `data:` URI, base64
    text of a PNG, JPEG, GIF, WebP, WAV, FLAC or Ogg file, bytes, a Hugging Face
    `{"bytes": ..., "path": ...}`, or a PIL image.

    Raises:
        UserError: none of these.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
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
        f"an {kind} is a path, URL, data URI, base64 text or bytes; found {type(value).__name__} "
        f"{value!r:.60}"
    )


def open_media(media: Media, access: Access) -> BinaryIO:
    """The encoded bytes of a medium, as an open stream that the caller closes.

    Raises:
        MediaError: missing, no regular file, unreadable, outside the root, or a URL that is not
            allowed or does not answer; the message names it.
    """
    if media.data is not None:
        return io.BytesIO(media.data)
    if media.url is not None:
        return io.BytesIO(_fetch(media.url, access))
    path = located(media, access)
    if path is None:
        raise MediaError(f"{media.name}: has neither path, bytes nor URL")
    try:
        return path.open("rb")
    except OSError as error:
        check_disk(path)
        raise MediaError(f"{media.path}: {error.strerror}") from error


def located(media: Media, access: Access) -> Path | None:
    """The real path of a medium's file, which is there and lies in the root; None: it has no path.

    Raises:
        MediaError: missing, no regular file, or outside the root; the message names it.
    """
    if media.path is None:
        return None
    path = confined(media.path, access.root)
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
    fault = _try(path)
    if fault is None or errno.errorcode.get(fault.errno or 0) not in _SYSTEM:
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
    return None


def confined(path: str, root: str | None) -> Path:
    """The real path of a file that must lie inside `root`, links followed.

    Raises:
        MediaError: it lies elsewhere (or there is no root); names the file and the root.
    """
    if root is None:
        raise MediaError(f"{path}: no folder for media is known; set data.media_root")
    try:
        real, home = Path(path).resolve(), Path(root).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a loop of links
        raise MediaError(f"{path!r}: not a usable path: {error}") from error
    if not real.is_relative_to(home):
        raise MediaError(f"{path}: lies outside {home}, where this source's media must be")
    return real


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MediaError(f"base64 text {text[:20]!r}...: {error}") from error


def _fetch(url: str, access: Access) -> bytes:
    if not access.allow_urls:
        raise MediaError(f"{url}: URLs are not fetched unless data.allow_urls is true")
    if not url.startswith(("http://", "https://")):
        raise MediaError(f"{url}: only http and https URLs are fetched")
    try:
        with urllib.request.urlopen(url, timeout=URL_SECONDS) as reply:
            data: bytes = reply.read(URL_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MediaError(f"{url}: cannot be fetched: {error}") from error
    if len(data) > URL_BYTES:
        raise MediaError(f"{url}: larger than {URL_BYTES // 2**20} MiB")
    return data
