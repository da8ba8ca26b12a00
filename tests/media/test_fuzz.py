"""Damaged bytes of every format: media or a MediaError within the deadline and the memory, no crash."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from helpers.videos import animation, write_video
from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import MediaError
from vlmrl.media.access import Access, Reading
from vlmrl.media.decode import Job, decode_in_order
from vlmrl.schema import Media, MediaKind, Sample, Truth
from vlmrl.system.deadline_pool import DeadlinePool

DEADLINE = 20.0
MEMORY_MB = 512
READING = Reading(
    VideoConfig(fps=10, max_frames=8), AudioConfig(), DEADLINE, MEMORY_MB, max_pixels=2**22
)
QUICK, NIGHTLY = 20, 1000
"""Files per format."""


def image(file_format: str, **options: Any) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    pixels = Image.fromarray(noise).resize((64, 48), Image.Resampling.BICUBIC)
    pixels.save(buffer, file_format, **options)
    return buffer.getvalue()


def audio(file_format: str) -> bytes:
    buffer = io.BytesIO()
    tone = np.sin(np.arange(8000) / 5).astype(np.float32) / 4
    soundfile.write(buffer, tone, 16000, format=file_format)
    return buffer.getvalue()


def video(ending: str, codec: str, folder: Path) -> bytes:
    path = folder / f"seed.{ending}"
    return write_video(path, [100 * n for n in range(12)], codec=codec).read_bytes()


SEEDS: dict[str, tuple[MediaKind, Callable[[Path], bytes]]] = {
    "jpeg": ("image", lambda _: image("JPEG")),
    "progressive": ("image", lambda _: image("JPEG", progressive=True, exif=Image.Exif())),
    "png": ("image", lambda _: image("PNG")),
    "webp": ("image", lambda _: image("WEBP")),
    "gif": ("image", lambda _: image("GIF")),
    "tiff": ("image", lambda _: image("TIFF", compression="tiff_lzw")),
    "jp2": ("image", lambda _: image("JPEG2000")),
    "bmp": ("image", lambda _: image("BMP")),
    "animation": ("video", lambda _: animation([100] * 6)),
    "mp4": ("video", lambda folder: video("mp4", "libx264", folder)),
    "webm": ("video", lambda folder: video("webm", "libvpx-vp9", folder)),
    "wav": ("audio", lambda _: audio("WAV")),
    "flac": ("audio", lambda _: audio("FLAC")),
    "ogg": ("audio", lambda _: audio("OGG")),
    "mp3": ("audio", lambda _: audio("MP3")),
}


def damage(data: bytes, random: np.random.Generator) -> bytes:
    """Change, repeat, drop or cut some bytes; most changes hit the first ones, where headers are."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        size = len(changed)
        at = int(random.integers(0, min(size, 256) if random.random() < 0.5 else size))
        length = int(random.integers(1, max(2, size // 8)))
        kind = random.integers(0, 8)
        if kind == 0:
            del changed[at : at + length]
        elif kind == 1:
            changed[at:at] = changed[at : at + length]
        elif kind == 2:
            changed[at : at + 4] = random.choice(
                [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"]
            )
        else:
            changed[at] = int(random.integers(0, 256))
        if not changed:
            return b"\0"
    return bytes(changed)


def check(name: str, count: int, seed: int, folder: Path) -> None:
    kind, make = SEEDS[name]
    data = make(folder)
    random = np.random.default_rng([seed, *name.encode()])
    files = [damage(data, random) for _ in range(count)]
    rows = [Sample(str(n), "fuzz", (Media(kind, data=f),), Truth()) for n, f in enumerate(files)]
    jobs = [Job(n, row, Access(), READING) for n, row in enumerate(rows)]
    outcomes: dict[int, Any] = {}
    with DeadlinePool(1) as pool:
        began = time.monotonic()
        for job, outcome in decode_in_order(jobs, pool, 16, 2**28):
            outcomes[job.key] = outcome
            assert time.monotonic() - began < DEADLINE + 20, f"{name} {seed} {job.key} hangs"
            began = time.monotonic()
    for number, outcome in outcomes.items():
        if isinstance(outcome, MediaError):
            said = str(outcome)
            # decord's FFmpeg of 2019 crashes on some: that costs the process and the row.
            assert kind == "video" or "process died" not in said, f"{name} {seed} {number}: {said}"
            assert "not decoded within" not in said, f"{name} {seed} {number}: {said}"
        else:
            assert isinstance(outcome, list) and len(outcome) == 1
    assert len(outcomes) == count


@pytest.mark.parametrize("name", SEEDS)
def test_some_damaged_files_of_each_format(name: str, tmp_path: Path) -> None:
    check(name, QUICK, 0, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SEEDS)
def test_many_damaged_files_of_each_format(name: str, tmp_path: Path) -> None:
    check(name, NIGHTLY, 1, tmp_path)


@pytest.mark.parametrize("name", ["jpeg", "progressive"])
def test_jpeg_is_never_accepted_where_libjpeg_warns(name: str, tmp_path: Path) -> None:
    data = SEEDS[name][1](tmp_path)
    random = np.random.default_rng(7)
    files = [damage(data, random) for _ in range(100)]
    with DeadlinePool(1) as pool:
        jobs = [
            Job(n, Sample("", "", (Media("image", data=f),), Truth()), Access(), READING)
            for n, f in enumerate(files)
        ]
        for job, outcome in decode_in_order(jobs, pool, 8, 2**28):
            assert not (isinstance(outcome, list) and warns(files[job.key])), job.key


def warns(data: bytes) -> bool:
    """Whether FFmpeg, another decoder altogether, calls a JPEG damaged."""
    try:
        with av.open(io.BytesIO(data), format="jpeg_pipe") as container:
            container.streams.video[0].codec_context.options = {"err_detect": "explode"}
            return not list(container.decode(video=0))
    except av.FFmpegError:
        return True
