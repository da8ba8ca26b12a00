"""Damage in an MP3 file that its reader overlooks: libsndfile looks for the next frame and plays on.

FFmpeg calls the same files damaged ("Header missing", "big_values too big", "invalid block type").
The layout of a frame is that of ISO/IEC 11172-3 and 13818-3.
"""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["check_mp3"]

_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Samples per second, by the two bits of the version: MPEG-1, 2 and 2.5."""
_KBITS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""Thousands of bits per second in MPEG-2 and 2.5."""
_KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
"""The same in MPEG-1."""
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3", b"3DI")
"""What may follow the last frame."""
MAX_BIG_VALUES = 288
"""Pairs of the 576 frequencies of a granule."""


def check_mp3(data: bytes, seconds: float | None = None) -> None:
    """Check that the frames of a Layer III file follow each other and hold possible side information.

    Only the first `seconds` are looked at, if given. After the last frame only tags and zeros may follow.

    Raises:
        ValueError: it is damaged.
    """
    at = _after_tags(data)
    kind = (data[at + 1] & 0xFE, data[at + 2] & 0x0C) if at + 3 < len(data) else (0, 0)
    most = _num_frames(kind, seconds)
    sizes: dict[bytes, int] = {}
    starts: list[int] = []
    while at < len(data) and len(starts) < most:
        head = data[at : at + 3]
        if head not in sizes:
            sizes[head] = _frame_size(head, kind)
        if not sizes[head]:
            break
        starts.append(at)
        at += sizes[head]
    rest = data[at:]
    ended = len(starts) >= most or rest.startswith(_TAGS) or len(rest) < 4 or not rest.strip(b"\0")
    if not starts or not ended:
        raise ValueError(f"expected an MPEG frame at byte {at}, got {rest[:4]!r}")
    _check_side(data, starts)


def _after_tags(data: bytes) -> int:
    """Return where the first frame is expected: after tags at the beginning and their padding."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) > at + 10:
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if data[at + 5] & 0x10 else 0)
    while data[at : at + 1] == b"\0":
        at += 1
    return at


def _frame_size(head: bytes, kind: tuple[int, int]) -> int:
    """Return the bytes of a frame by its first three, 0 if it is none of this version and rate."""
    if len(head) < 3 or head[0] != 0xFF or (head[1] & 0xFE, head[2] & 0x0C) != kind:
        return 0
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bits, rate = head[2] >> 4, head[2] >> 2 & 3
    if head[1] < 0xE0 or version == 1 or layer != 1 or bits in (0, 15) or rate == 3:
        return 0
    thousands = _KBITS_1[bits] * 2 if version == 3 else _KBITS[bits]
    return 72000 * thousands // _RATES[version][rate] + (head[2] >> 1 & 1)


def _num_frames(kind: tuple[int, int], seconds: float | None) -> float:
    version, rate = kind[0] >> 3 & 3, kind[1] >> 2
    if seconds is None or version == 1 or rate == 3:
        return float("inf")
    return seconds * _RATES[version][rate] / (1152 if version == 3 else 576)


def _side_size(data: bytes, at: int) -> tuple[int, int, int]:
    """Return channels, where the side information of the frame here begins, and its size in bytes."""
    channels = 1 if data[at + 3] >> 6 == 3 else 2
    begin = at + (4 if data[at + 1] & 1 else 6)  # after a checksum, if there is one
    first_version = data[at + 1] >> 3 & 3 == 3
    return channels, begin, (9, 17, 32)[channels - 1 + first_version]


def _check_side(data: bytes, starts: list[int]) -> None:
    """Check the side information of the frames that are there whole; at most the last is not."""
    channels, begin, size = _side_size(data, starts[0])
    head = begin - starts[0]
    while starts and starts[-1] + head + size > len(data):
        starts.pop()
    at = np.array(starts, dtype=np.int64)
    values = np.frombuffer(data, np.uint8)
    if ((values[at + 3] >> 6 == 3) != (channels == 1)).any():
        raise ValueError("the number of channels changes between MPEG frames")
    side = values[at[:, None] + np.arange(head, head + size)].astype(np.int32)
    first_version = data[starts[0] + 1] >> 3 & 3 == 3
    granules, wide, gains = (2, 59, 4) if first_version else (1, 63, 9)
    if first_version:
        bit = 9 + (5 if channels == 1 else 3) + 4 * channels
    else:
        bit = 8 + channels
    for _ in itertools.product(range(granules), range(channels)):
        if (_bits(side, bit + 12, 9) > MAX_BIG_VALUES).any():
            raise ValueError("an MPEG frame has more values than frequencies")
        switched = bit + 12 + 9 + 8 + gains
        if ((_bits(side, switched, 1) == 1) & (_bits(side, switched + 1, 2) == 0)).any():
            raise ValueError("an MPEG frame has an impossible type of block")
        bit += wide


def _bits(side: np.ndarray, at: int, count: int) -> np.ndarray:
    """Return up to nine bits of each row as numbers."""
    byte = at // 8
    pair = side[:, byte] << 8 | side[:, byte + 1]
    return pair >> (16 - at % 8 - count) & ((1 << count) - 1)
