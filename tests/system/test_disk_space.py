"""A full disk: a failing write is one line; a run that waits for room goes on when there is some."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vlmrl.errors import UserError
from vlmrl.system import files


class FullFor:
    """A write that finds the disk full a number of times, then writes."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_text("half")
        if self.calls <= self.times:
            raise self.error
        path.write_text("whole")


FULL = OSError(errno.ENOSPC, "No space left on device")
OF_TORCH = RuntimeError(
    "[enforce fail at inline_container.cc:659] . unexpected pos 64 vs 0\nat ..."
)


AT_ITS_END = RuntimeError("basic_ios::clear: iostream error")
"""What torch says when the last bytes of its buffer are not written."""


@pytest.mark.parametrize(
    "error", [FULL, OF_TORCH, AT_ITS_END, OSError(errno.EDQUOT, "Quota exceeded")]
)
def test_a_write_on_a_full_disk_waits_if_asked_to_and_is_one_line_otherwise(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_S", 0.0)
    path, said = tmp_path / "deep" / "file", []
    with pytest.raises(UserError, match=r"file: cannot be written: .* \(\d+ MiB free\)$"):
        files.write_whole(path, FullFor(1, error))
    assert list(path.parent.iterdir()) == []
    with files.pausing(said.append):
        files.write_whole(path, FullFor(3, error))
    assert path.read_text() == "whole" and list(path.parent.iterdir()) == [path]
    assert len(said) == 1 and "waiting for room" in said[0]


def test_what_is_no_lack_of_room_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    with files.pausing(said.append):
        with pytest.raises(UserError, match="Permission denied"):
            denied = OSError(errno.EACCES, "Permission denied")
            files.write_whole(tmp_path / "file", FullFor(9, denied))
        with pytest.raises(RuntimeError, match="a bug"):
            files.write_whole(tmp_path / "file", FullFor(9, RuntimeError("a bug")))
    assert said == []


def test_a_line_that_found_no_room_is_there_once_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "curve.jsonl", []
    monkeypatch.setattr(files, "RETRY_S", 0.0)
    real, attempts = Path.open, []

    def opens_late(self: Path, *arguments: object, **options: object) -> object:
        attempts.append(1)
        if len(attempts) in (2, 3):
            raise FULL
        return real(self, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", opens_late)
    with files.pausing(said.append):
        files.append_line(path, {"step": 1})
        files.append_line(path, {"step": 2})
    monkeypatch.undo()
    assert files.read_lines(path) == [{"step": 1}, {"step": 2}] and len(said) == 1
