"""Which images are safe to decode in the trainer, as their first bytes tell.

A small JPEG, PNG, WebP or BMP of the ordinary kind decodes in milliseconds and little memory whatever
its bytes are. Everything else goes to a process with a deadline and a ceiling on memory: large images,
other formats, and files with more structure than images have (a million text chunks, hundreds of
scans, an EXIF block that names itself thousands of times).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PLAIN_MEMORY = 128 * 2**20
"""Bytes that decoding a sample's images may take in the trainer."""
PLAIN_BYTES = 16 * 2**20
"""Bytes that their files may have."""
PLAIN_COUNT = 64
"""How many they may be."""
MAX_SEGMENTS = 256
MAX_SCANS = 20
"""Scans of a progressive JPEG: each goes over the whole image; encoders write about ten."""
MAX_CHUNKS = 4096
MAX_METADATA = 65536
"""Bytes of text, profiles or EXIF."""
MAX_TAGS = 256
# Bytes per pixel that decoding takes: planes, the coefficients of a progressive file, copies.
_BASELINE, _PROGRESSIVE, _OTHER = 6, 18, 24
_PLAIN_CHUNKS = frozenset(
    b"PLTE IDAT IEND tRNS gAMA cHRM sRGB pHYs tIME sBIT bKGD iCCP tEXt".split()
)


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of an image say."""

    width: int
    height: int
    plain: bool
    """Whether nothing about it is out of the ordinary, its size aside."""
    bytes_per_pixel: int = _OTHER

    @property
    def memory(self) -> int:
        """Bytes that decoding it takes, at most."""
        return self.width * self.height * self.bytes_per_pixel


def read_header(data: bytes) -> Header | None:
    """Return the header of a JPEG, PNG, WebP or BMP; None for other formats and for damaged ones.

    `data` is the whole file; of a part `plain` says nothing.
    """
    try:
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return Header(width, height, _has_plain_chunks(data))
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        if data.startswith(b"BM"):
            return _bmp(data)
    except (struct.error, IndexError):  # it ends too early
        pass
    return None


def _jpeg(data: bytes) -> Header | None:
    at, exif, plain = 2, 0, True
    header = None
    for _ in range(MAX_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF or length < 2:
            return None
        segment = data[at + 4 : at + 2 + length]
        if kind == 0xDA:  # the first scan begins
            return header
        if kind == 0xE1 and segment.startswith(b"Exif\0\0"):
            exif += length
            plain &= exif <= MAX_METADATA and _has_few_tags(segment[6:])
        elif kind == 0xE2 and segment.startswith(b"MPF\0"):
            plain &= _has_few_tags(segment[4:])
        elif kind in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack_from(">HH", segment, 1)
            plain &= data.count(b"\xff\xda") <= MAX_SCANS
            header = Header(width, height, plain, _PROGRESSIVE if kind == 0xC2 else _BASELINE)
        at += 2 + length
    return None


def _has_few_tags(directory: bytes) -> bool:
    """Return whether a TIFF directory is small: Pillow copies what each of its tags points to."""
    order = {b"II": "<", b"MM": ">"}.get(directory[:2])
    if order is None:
        return False
    (start,) = struct.unpack_from(f"{order}I", directory, 4)
    (count,) = struct.unpack_from(f"{order}H", directory, start)
    return bool(count <= MAX_TAGS)


def _has_plain_chunks(data: bytes) -> bool:
    """Return whether a PNG is made of few chunks, all of the usual kinds."""
    at, text = 33, 0
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return False
        length, kind = struct.unpack_from(">I4s", data, at)
        text += length if kind in (b"tEXt", b"iCCP") else 0
        if kind not in _PLAIN_CHUNKS or text > MAX_METADATA:
            return False
        if kind == b"IEND":
            return True
        at += 12 + length
    return False


def _webp(data: bytes) -> Header | None:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return Header(width, height, True)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, True)
    if kind != b"VP8X":
        return None
    width, height = (1 + int.from_bytes(data[i : i + 3], "little") for i in (24, 27))
    return Header(width, height, not data[20] & 0b00001110)  # EXIF, XMP, animation


def _bmp(data: bytes) -> Header:
    """Read a bitmap; plain is what Pillow writes of RGB: uncompressed rows, all of them in the file."""
    start, info, width, height = struct.unpack_from("<IIii", data, 10)
    planes, bits, compression = struct.unpack_from("<HHI", data, 26)
    row = (width * bits + 31) // 32 * 4
    ordinary = (start, info, planes, bits, compression) == (54, 40, 1, 24, 0)
    whole = width > 0 < height and start + row * height <= len(data)
    return Header(abs(width), abs(height), ordinary and whole)
