"""Damaged bytes of every format: media or a MediaError within the deadline and the memory, no crash."""

from __future__ import annotations

import io
import resource
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
from vlmrl.media.decode import DecodeJob, decode_in_order
from vlmrl.schema import Media, MediaKind, Sample, Truth
from vlmrl.system.deadline_pool import DeadlinePool

DEADLINE = 20.0
MEMORY_MB = 512
READING = Reading(
    VideoConfig(fps=10, max_frames=8), AudioConfig(), DEADLINE, MEMORY_MB, max_pixels=2**22
)
QUICK, NIGHTLY = 20, 10_000
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

CHECKED = {"png": "png_pipe", "flac": "flac", "ogg": "ogg"}
"""Formats that have checksums, and FFmpeg's names; of others, damage may be decoded to other media."""


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
    jobs = [DecodeJob(n, row, Access(), READING) for n, row in enumerate(rows)]
    outcomes: dict[int, Any] = {}
    with DeadlinePool(1) as pool:
        before = peak_mb(pool)
        began = time.monotonic()
        for job, outcome in decode_in_order(jobs, pool, 16, 2**28):
            outcomes[job.key] = outcome
            assert time.monotonic() - began < DEADLINE + 20, f"{name} {seed} {job.key} hangs"
            began = time.monotonic()
        assert peak_mb(pool) < before + MEMORY_MB
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


@pytest.mark.parametrize("name", CHECKED)
def test_damage_is_not_accepted_where_ffmpeg_warns(name: str, tmp_path: Path) -> None:
    check_silence(name, 100, 7, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CHECKED)
def test_much_damage_is_not_accepted_where_ffmpeg_warns(name: str, tmp_path: Path) -> None:
    check_silence(name, NIGHTLY, 8, tmp_path)


def check_silence(name: str, count: int, seed: int, folder: Path) -> None:
    """No damaged file gives other pixels or samples than the whole one, if FFmpeg calls it damaged."""
    kind, make = SEEDS[name]
    data = make(folder)
    random = np.random.default_rng([seed, *name.encode()])
    files = [data] + [damage(data, random) for _ in range(count)]
    jobs = [
        DecodeJob(n, Sample("", "", (Media(kind, data=f),), Truth()), Access(), READING)
        for n, f in enumerate(files)
    ]
    whole, unnoticed = None, []
    with DeadlinePool(1) as pool:
        for job, outcome in decode_in_order(jobs, pool, 8, 2**28):
            if job.key == 0:
                whole = values(outcome)
            elif (
                isinstance(outcome, list)
                and not np.array_equal(values(outcome), whole)
                and warns(files[job.key], CHECKED[name])
            ):
                unnoticed.append(job.key)
    assert unnoticed == [], f"{name} {seed} {unnoticed}"


def values(outcome: Any) -> np.ndarray:
    return np.asarray(outcome[0].samples if hasattr(outcome[0], "samples") else outcome[0])


def peak_mb(pool: DeadlinePool) -> float:
    """The most memory that the worker has had."""
    usage = pool.submit(resource.getrusage, resource.RUSAGE_SELF, deadline=DEADLINE).result()
    return float(usage.ru_maxrss) / 1024


def warns(data: bytes, file_format: str) -> bool:
    """Whether FFmpeg, another decoder altogether, calls a file damaged."""
    try:
        with av.open(io.BytesIO(data), format=file_format) as container:
            stream = container.streams[0]
            stream.codec_context.options = {"err_detect": "crccheck+explode"}
            return not list(container.decode(stream))
    except av.error.PatchWelcomeError:  # it cannot decode such a file, whole or damaged
        return False
    except av.FFmpegError:
        return True
