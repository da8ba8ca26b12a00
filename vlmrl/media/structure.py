"""Damage and excess in an image file that Pillow overlooks, found before Pillow reads it.

Pillow compares no checksum of a PNG's pixels, so that damage shows as wrong pixels without a word. It
reads text chunks and comments one at a time, however many there are: a million take it 18 s.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import BinaryIO

from vlmrl.errors import MediaError

__all__ = ["check_structure"]

MAX_CHUNKS = 1000
"""Chunks of a PNG that hold neither pixels nor a frame; encoders write about ten."""
MAX_COMMENTS = 65536
"""Bytes of the header of a netpbm image."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PIXELS = frozenset((b"IDAT", b"fdAT", b"fcTL"))
_COMMENT = re.compile(rb"#[^\r\n]*")


def check_structure(stream: BinaryIO, name: str) -> None:
    """Check the structure of an image that begins here, and go back to its beginning.

    Raises:
        MediaError: a checksum does not fit, or there are more chunks or comments than images have;
            the message names the file.
    """
    begin = stream.tell()
    start = stream.read(len(_PNG))
    if start == _PNG:
        _check_png(stream, name)
    elif start[:1] == b"P":
        _check_netpbm(start + stream.read(MAX_COMMENTS - len(start)), name)
    stream.seek(begin)


def _check_png(stream: BinaryIO, name: str) -> None:
    others = 0
    while len(header := stream.read(8)) == 8:  # Pillow reports a file that is cut
        size, kind = struct.unpack(">I4s", header)
        others += kind not in _PIXELS or not size
        if others > MAX_CHUNKS:
            raise MediaError(f"{name}: has more than {MAX_CHUNKS} chunks beside its pixels")
        stated = zlib.crc32(stream.read(size), zlib.crc32(kind))
        if (found := stream.read(4)) != struct.pack(">I", stated) and len(found) == 4:
            raise MediaError(f"{name}: damaged: the checksum of its chunk {kind!r} does not fit")
        if kind == b"IEND":
            return


def _check_netpbm(head: bytes, name: str) -> None:
    words = _COMMENT.sub(b"", head).split(maxsplit=3)
    if (
        len(head) == MAX_COMMENTS and len(words) < 4
    ):  # magic number, width, height, and what follows
        raise MediaError(f"{name}: has more than {MAX_COMMENTS} bytes of comments")
