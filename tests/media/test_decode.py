"""Decoding a sample: whatever a decoder raises is about its row; only a disk that fails is not."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmrl.errors import MediaError
from vlmrl.media import access as access_module
from vlmrl.media import decode as decode_module
from vlmrl.media.access import Access, DiskError
from vlmrl.media.decode import Job, decode, decode_in_order
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

    monkeypatch.setattr(decode_module, "load_image", fail)
    with pytest.raises(MediaError, match=rf"a\.png: cannot be decoded: {type(error).__name__}"):
        decode(sample_of(Media("image", path=str(folder / "a.png"))), Access(str(folder)))


def _raise_odd(*_: Any) -> None:
    raise Odd(1, "from afar")


def test_any_exception_of_a_worker_is_about_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "_decode_bounded", _raise_odd)
    media = Media("image", path=str(folder / "a.png"))
    with DeadlinePool(1) as pool:
        job = Job("key", sample_of(media), Access(str(folder)))
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
