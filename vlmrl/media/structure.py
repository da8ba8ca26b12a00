"""Damage and excess in an image file that Pillow overlooks, found before Pillow reads it.

Pillow compares no checksum of a PNG's pixels, so that damage silently becomes wrong pixels. It reads
text chunks and comments one at a time, however many there are: a million take it 18 s. It goes on
where the blocks of a GIF or the headers of a bitmap contradict each other. libjpeg decodes noise without
a warning where the tables are ones that no encoder can have written.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import BinaryIO

import av
import numpy as np

from vlmrl.errors import MediaError

__all__ = ["check_jpeg", "check_runs", "check_structure"]

MAX_CHUNKS = 1000
"""Chunks of a PNG that hold neither pixels nor a frame; encoders write about ten."""
MAX_COMMENTS = 65536
"""Bytes of the header of a netpbm image."""
_PNG = b"\x89PNG\r\n\x1a\n"
_BMP_HEAD, _OLD_BMP = 30, 12
"""Bytes of a bitmap up to its bits of a pixel; the length of the header of OS/2."""
_CODESTREAM = b"\xff\x4f\xff\x51"
"""What a JPEG 2000 codestream begins with, alone or in the boxes of a file."""
_SIZES, _CODING, _STEPS, _TILE = 0xFF51, 0xFF52, 0xFF5C, 0xFF90
_STEP_BYTES = {0: 1, 1: 2, 2: 2}
"""Bytes of a JPEG 2000 step, by its kind: without loss, derived from the first, one of each band."""
_MAX_SEPARATION = 4
"""Pixels from one sample of a JPEG 2000 component to the next; chroma has 2, rarely 4."""
_SCALES, _CODES, _SCAN, _END = 0xDB, 0xC4, 0xDA, 0xD9
_FRAMES = frozenset(range(0xC0, 0xD0)) - {_CODES, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1)
_ENDS_SCAN = np.array([byte not in (0, *range(0xD0, 0xD8), 0xFF) for byte in range(256)])
"""By the byte after 0xFF: neither a stuffed byte nor a restart."""
_BITS = (11, 10)
"""The most bits of a DC and of an AC coefficient of 8-bit pixels (ITU-T T.81, tables F.1 and F.2)."""
_SYMBOLS = tuple(bytes(n for n in range(256) if n & 15 <= most) for most in _BITS)
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
    elif start[:6] in (b"GIF87a", b"GIF89a"):
        _check_gif(stream, name)
    elif start[:4] == _CODESTREAM or start[4:] == b"jP  ":
        _check_jpeg2000(start + stream.read(), name)
    elif start[:2] == b"BM":
        _check_bmp(start + stream.read(_BMP_HEAD - len(start)), name)
    elif start[:1] == b"P":
        _check_netpbm(start + stream.read(MAX_COMMENTS - len(start)), name)
    stream.seek(begin)


def check_jpeg(data: bytes) -> None:
    """Check the tables of a JPEG and each scan's choice of them.

    A run of zeros that ends beyond its band is not found: see `check_runs`.

    Raises:
        ValueError: they are none that an encoder writes.
    """
    at, frame, components, ends = 2, 0, 0, None
    while data[at : at + 1] == b"\xff":  # of anything else libjpeg warns
        while data[at + 1 : at + 2] == b"\xff":
            at += 1
        kind = int.from_bytes(data[at + 1 : at + 2], "big")
        begin, at = at + 4, at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[begin:at]
        if kind == _END or not segment:
            return
        if kind in _FRAMES:
            frame, components = kind, sum(segment[5:6])
        elif kind == _SCALES:
            _check_scales(segment)
        elif kind == _CODES:
            _check_codes(segment)
        elif kind == _SCAN:
            if any(choice & 0xCC for choice in segment[2 : 1 + 2 * segment[0] : 2]):
                raise ValueError("a scan chooses a table above the fourth")
            if frame in _SEQUENTIAL and segment[0] == components:
                return  # nothing but its pixels follows
            ends = _ends_of_scans(data) if ends is None else ends
            at = next((int(end) for end in ends[np.searchsorted(ends, at) :]), len(data))


def check_runs(data: bytes) -> None:
    """Check that no run of zeros in a progressive JPEG ends beyond its band; libjpeg skips such runs.

    Only decoding shows them. FFmpeg does it at an eighth of the size, in half of libjpeg's time.

    Raises:
        ValueError: one does.
    """
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.options = {"err_detect": "explode", "lowres": "3"}
    try:
        decoder.decode(av.Packet(data))
    except av.error.InvalidDataError as error:
        raise ValueError("a run of coefficients ends beyond its band") from error
    except av.FFmpegError:  # a kind of JPEG that it does not know
        pass


def _ends_of_scans(data: bytes) -> np.ndarray:
    """Return where 0xFF and a byte that ends a scan are; some are inside of segments."""
    values = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(values[:-1] == 0xFF)
    return marks[_ENDS_SCAN[values[marks + 1]]]


def _check_scales(segment: bytes) -> None:
    while segment:
        wide = segment[0] >> 4
        numbers = segment[1:65] if not wide else np.frombuffer(segment[1:129], ">u2")
        if 0 in numbers:
            raise ValueError("a quantization table holds a zero")
        segment = segment[129 if wide else 65 :]


def _check_codes(segment: bytes) -> None:
    while len(segment) > 16:
        count = sum(segment[1:17])
        symbols, kind = segment[17 : 17 + count], segment[0] >> 4 & 1
        if len(set(symbols)) < len(symbols):
            raise ValueError("a Huffman table holds a symbol twice")
        if symbols.translate(None, _SYMBOLS[kind]):
            raise ValueError(f"a Huffman table holds coefficients of more than {_BITS[kind]} bits")
        segment = segment[17 + count :]


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


def _check_gif(stream: BinaryIO, name: str) -> None:
    """Check that one block follows the other; where the data of an image end, only they tell."""
    stream.seek(2, 1)
    _pass_colours(stream, flags_at=0, then=3)
    while kind := stream.read(1):  # Pillow reports a file that is cut
        if kind == b";":
            return
        if kind == b",":
            _pass_colours(stream, flags_at=8, then=2)
        elif kind == b"!":
            stream.seek(1, 1)
        else:
            raise MediaError(f"{name}: damaged: the byte {kind[0]} where a block begins")
        while (size := stream.read(1)) > b"\0":
            stream.seek(size[0], 1)


def _pass_colours(stream: BinaryIO, flags_at: int, then: int) -> None:
    """Go on to behind a GIF's flags, `then` - 1 bytes more, and the table of colours that they announce."""
    stream.seek(flags_at, 1)
    flags = ord(stream.read(1) or b"\0")
    stream.seek(then - 1 + (3 << (flags & 7) + 1 if flags & 0x80 else 0), 1)


def _check_bmp(head: bytes, name: str) -> None:
    if len(head) < _BMP_HEAD:  # Pillow reports a file that is cut
        return
    start, info = struct.unpack_from("<II", head, 10)
    planes, bits = struct.unpack_from("<HH", head, 22 if info == _OLD_BMP else 26)
    if planes != 1:
        raise MediaError(f"{name}: damaged: {planes} planes, where a bitmap has 1")
    if start < 14 + info:
        raise MediaError(f"{name}: damaged: its pixels begin at {start}, within its header")
    if 0 < bits <= 8 and start == 14 + info:
        raise MediaError(f"{name}: damaged: {bits} bits a pixel, and no table of colours")


def _check_jpeg2000(data: bytes, name: str) -> None:
    """Check the sizes of a codestream, its table of steps, and that each of its tiles is there."""
    at = data.find(_CODESTREAM) + 2
    segments: dict[int, bytes] = {}
    found: set[int] = set()
    try:
        while at >= 2:
            mark, length = struct.unpack_from(">HH", data, at)
            segment = data[at + 4 : at + 2 + length]
            if mark == _TILE:
                tile, to_next = struct.unpack_from(">HI", segment)
                found.add(tile)
                if not to_next:  # to the end of the file
                    break
                at += to_next
            elif found:  # the end, or what cuts the tiles short
                break
            else:
                segments.setdefault(mark, segment)
                at += 2 + length
    except struct.error:  # the file ends here
        pass
    try:
        damage = _damage_of_jpeg2000(segments, len(found))
    except (struct.error, LookupError):
        damage = "a segment of its main header is missing or short"
    if damage is not None:
        raise MediaError(f"{name}: damaged: {damage}")


def _damage_of_jpeg2000(segments: dict[int, bytes], found: int) -> str | None:
    """Return what is wrong with the main header's segments, or with the number of tiles `found`."""
    sizes, coding, steps = segments[_SIZES], segments[_CODING], segments[_STEPS]
    _, x, y, left, top, wide, high, from_x, from_y, count = struct.unpack_from(">H8IH", sizes)
    separations = sizes[37 : 36 + 3 * count : 3] + sizes[38 : 36 + 3 * count : 3]
    if not all(0 < n <= _MAX_SEPARATION for n in separations):
        return "its components have samples too far from each other"
    if not all(0 < n < 2**31 for n in (wide, high)):
        return f"its tiles have {wide}x{high} pixels"
    if not (from_x <= left < from_x + wide and from_y <= top < from_y + high):
        return "its first tile lies outside of the image"
    tiles = -((from_x - x) // wide) * -((from_y - y) // high)
    if found != tiles:
        return f"it has {found} of {tiles} tiles"
    bands, style = 3 * coding[5] + 1, steps[0] & 31
    if style not in _STEP_BYTES:
        return f"its steps are of an unknown kind {style}"
    if len(steps) < 1 + _STEP_BYTES[style] * (bands if style != 1 else 1):
        return f"its table of steps is too short for {bands} bands"
    if style == 0:  # without loss: each band has the bits of a pixel, its sign apart (T.800, E.1)
        pixel_bits = min((n & 127) + 1 for n in sizes[36 : 36 + 3 * count : 3])
        if min(steps[1 : 1 + bands]) // 8 + (steps[0] >> 5) - 1 < pixel_bits - 1:
            return f"a band has fewer bits than its pixels, {pixel_bits}"
    return None


def _check_netpbm(head: bytes, name: str) -> None:
    words = _COMMENT.sub(b"", head).split(maxsplit=3)
    if (
        len(head) == MAX_COMMENTS and len(words) < 4
    ):  # magic number, width, height, and what follows
        raise MediaError(f"{name}: has more than {MAX_COMMENTS} bytes of comments")
