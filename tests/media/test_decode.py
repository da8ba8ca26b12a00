"""Decoding a sample: whatever a decoder raises is about its row, and costs no more than allowed."""

from __future__ import annotations

import errno
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.videos import animation
from vlmrl.config import VideoConfig
from vlmrl.errors import DiskError, MediaError
from vlmrl.media import access as access_module
from vlmrl.media import decode as decode_module
from vlmrl.media.access import Access, Reading
from vlmrl.media.decode import DecodeJob, decode, decode_in_order, measure_image
from vlmrl.schema import Media, Sample, Truth
from vlmrl.system.deadline_pool import DeadlinePool


def sample_of(*media: Media) -> Sample:
    return Sample("row", "test", media, Truth())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    return tmp_path


class Odd(Exception):
    """An error that cannot be rebuilt from its message, as it comes out of a worker."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


@pytest.mark.parametrize(
    "error", [ValueError("6 channels"), OSError(errno.EIO, "no"), AttributeError("x"), Odd(1, "y")]
)
def test_any_exception_of_a_decoder_is_about_its_row(
    error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(decode_module, "decode_image", fail)
    with pytest.raises(MediaError, match=rf"a\.png: cannot be decoded: {type(error).__name__}"):
        decode(sample_of(Media("image", path=str(folder / "a.png"))), Access(str(folder)))


def _raise(*_: Any) -> None:
    raise ValueError("from afar")


def test_any_exception_of_a_worker_is_about_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "_decode_bounded", _raise)
    media = Media("image", path=str(folder / "a.png"))
    with DeadlinePool(1) as pool:
        job = DecodeJob("key", sample_of(media), Access(str(folder)))
        ((_, outcome),) = decode_in_order([job], pool, 1, 2**20)
    assert isinstance(outcome, MediaError)
    assert "a.png: cannot be decoded" in str(outcome)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_disk_is_blamed_only_if_no_other_file_can_be_read(
    code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = sample_of(Media("image", path=str(folder / "a.png")))
    failing = {"a.png"}
    real = Path.open

    def open_or_fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name in failing:
            raise OSError(code, "fails")
        return real(path, *arguments, **options)

    monkeypatch.setattr(access_module.Path, "open", open_or_fail)
    with pytest.raises(MediaError, match=r"a\.png"):
        decode(row, Access(str(folder)))
    failing.add("b.png")
    with pytest.raises(DiskError, match="no file in"):
        decode(row, Access(str(folder)))


# ------------------------------------------------------------------------------- hostile structure


def png_chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png_with(chunks: bytes, size: tuple[int, int] = (8, 8)) -> bytes:
    """A PNG with these chunks between its header and its pixels."""
    data = encoded(Image.new("RGB", size), "PNG")
    return data[:33] + chunks + data[33:]


def encoded(image: Image.Image, file_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def many_scans() -> bytes:
    """A progressive JPEG that repeats its last scan 1000 times."""
    data = encoded(Image.new("RGB", (64, 64), "red"), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * 1000 + data[-2:]


def tags_that_share(size: int) -> bytes:
    """An EXIF block of 5000 tags, all of which point to the same bytes."""
    entries = b"".join(struct.pack("<HHII", 40000 + n, 7, size, 8) for n in range(5000))
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 5000) + entries


def jpeg_with_exif() -> bytes:
    return encoded(Image.new("RGB", (8, 8)), "JPEG", exif=tags_that_share(50_000))


HOSTILE = {
    "large": encoded(Image.new("1", (4000, 4000)), "PNG"),
    "text chunks": png_with(png_chunk(b"tEXt", b"a\0b") * 20_000),
    "long text": png_with(png_chunk(b"tEXt", b"a\0" + bytes(100_000))),
    "compressed text": png_with(png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**6)))),
    "exif in a png": png_with(png_chunk(b"eXIf", tags_that_share(50_000)[6:])),
    "exif in a jpeg": jpeg_with_exif(),
    "scans": many_scans(),
    "segments": b"\xff\xd8" + b"\xff\xfe\0\x02" * 100_000 + jpeg_with_exif()[2:],
    "netpbm comment": b"P6 #" + b"a" * 1000 + b"\n1 1 255\n\0\0\0",
    "gif": encoded(Image.new("P", (8, 8)), "GIF"),
    "tiff": encoded(Image.new("RGB", (8, 8)), "TIFF"),
    "bitmap with a palette": encoded(Image.new("P", (8, 8)), "BMP"),
    "bitmap that ends early": encoded(Image.new("RGB", (8, 8)), "BMP")[:-1],
    "bitmap with a negative width": struct.pack(
        "<2sIIIIiiHHI", b"BM", 200, 0, 54, 40, -8, 8, 1, 24, 0
    )
    + bytes(300),
    "animated webp": encoded(
        Image.new("RGB", (8, 8)), "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), 9)]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_odd_image_is_decoded_in_the_trainer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("decoded here")

    monkeypatch.setattr(decode_module, "decode_image", fail)
    row = sample_of(Media("image", data=HOSTILE[name]))
    try:
        decode(row, Access(), Reading(seconds=20, memory_mb=300))
    except MediaError as error:
        assert "decoded here" not in str(error)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "BMP"])
def test_ordinary_image_is_decoded_in_the_trainer(
    file_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "_BOUNDED", None)
    modes = {"PNG": ("RGB", "L", "RGBA", "P"), "BMP": ("RGB",)}.get(file_format, ("RGB", "L"))
    for mode in modes:
        data = encoded(Image.new(mode, (640, 480)), file_format, dpi=(72, 72))
        (image,) = decode(sample_of(Media("image", data=data)), Access())
        assert image.size == (640, 480)
    if file_format == "JPEG":
        for options in ({"progressive": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}):
            data = encoded(Image.new("RGB", (640, 480)), "JPEG", **options)
            assert decode(sample_of(Media("image", data=data)), Access())


def test_ceilings_on_time_and_memory_hold_without_workers() -> None:
    row = sample_of(Media("image", data=encoded(Image.new("1", (8000, 8000)), "PNG")))
    with pytest.raises(MediaError, match=r"need.* more than data\.decode_memory_mb \(64 MiB"):
        decode(row, Access(), Reading(memory_mb=64))
    noise = np.random.default_rng(0).integers(0, 255, (1500, 1500, 3), dtype=np.uint8)
    row = sample_of(*[Media("image", data=encoded(Image.fromarray(noise), "PNG"))] * 20)
    with pytest.raises(MediaError, match=r"data\.decode_timeout_s \(0\.2 s\)"):
        decode(row, Access(), Reading(seconds=0.2))


@pytest.mark.parametrize("name", ["text chunks", "comments"])
def test_millions_of_chunks_or_comments_are_refused_unread(name: str) -> None:
    data = {
        "text chunks": png_with(png_chunk(b"tEXt", b"a\0b") * 10**6),
        "comments": b"P6 " + b"#a\n" * 10**7 + b"1 1 255\n\0\0\0",
    }[name]
    with pytest.raises(MediaError, match="has more than"):  # Pillow needs 18 s, and 22 s
        decode(sample_of(Media("image", data=data)), Access(), Reading(seconds=2))


@pytest.mark.parametrize("side", [16, 3000])
def test_pixels_are_limited_for_a_row_as_a_whole(side: int) -> None:
    image = Media("image", data=encoded(Image.new("RGB", (side, side)), "PNG"))
    most = Reading(max_pixels=side**2 * 3)
    assert len(decode(sample_of(image, image, image), Access(), most)) == 3
    with pytest.raises(MediaError, match=r"data\.max_image_pixels leaves 0"):
        decode(sample_of(image, image, image, image), Access(), most)


def test_bytes_are_limited_for_a_row_as_a_whole(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 500, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")  # 0.6 MB
    image = Media("image", path=str(tmp_path / "a.png"))
    access = Access(str(tmp_path), max_mb=1)
    assert len(decode(sample_of(image), access)) == 1
    with pytest.raises(MediaError, match=r"1\.\d MiB, more than data\.max_media_mb \(1\) allows"):
        decode(sample_of(image, image, image), access)


def test_row_of_very_many_images_is_decoded_elsewhere_and_its_error_stays_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Media("image", data=encoded(Image.new("RGB", (1, 1)), "PNG"))
    row = sample_of(*[image] * 5000)
    with pytest.raises(MediaError, match=r"and 4996 more: ") as caught:
        decode(row, Access(), Reading(seconds=0.01))
    assert len(str(caught.value)) < 500


def test_long_animation_and_list_of_frames_are_refused(tmp_path: Path) -> None:
    reading = Reading(video=VideoConfig(max_source_frames=5))
    data = animation([100] * 8)
    with pytest.raises(MediaError, match=r"more than data\.video\.max_source_frames \(5\)"):
        decode(sample_of(Media("video", data=data)), Access(), reading)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    listed = Media("video", frames=(str(tmp_path / "a.png"),) * 8, fps=2.0)
    with pytest.raises(MediaError, match="max_source_frames"):
        decode(sample_of(listed), Access(str(tmp_path)), reading)


def test_size_of_an_odd_image_is_read_elsewhere() -> None:
    for name in ("large", "tiff", "gif"):
        size = (4000, 4000) if name == "large" else (8, 8)
        assert measure_image(Media("image", data=HOSTILE[name]), Access()) == size


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, kind: Any) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    sample = Sample("a", "s", (Media(kind, path=str(tmp_path / "pipe.png")),), Truth(text=("x",)))
    with pytest.raises(MediaError, match=r"pipe\.png: no such file"):
        decode(sample, Access(root=str(tmp_path)))
