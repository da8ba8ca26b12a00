"""A full disk: a failing write is one line, and a run that is told to waits for room.

Libraries have no common class for a write that failed: torch and safetensors raise their own errors,
which this module recognises by their words.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.errors import UserError
from vlmrl.system import distributed

RETRY_S = 30.0
"""Seconds between two attempts while the disk is full."""
FULL = (errno.ENOSPC, errno.EDQUOT)
SIGNS = (
    *("I/O error", "PytorchStreamWriter", "inline_container", "iostream error"),
    "No space left on device",
)
"""What errors of safetensors and torch about a failing write have in their text."""
SAID = "{path}: cannot be written: {reason}"

_tell: Callable[[str], None] | None = None
_check: Callable[[], None] | None = None


@contextmanager
def checking(check: Callable[[], None]) -> Iterator[None]:
    """Inside, every write first calls `check`, which raises where this process may not write any more."""
    global _check
    _check = check
    try:
        require_may_write()
        yield
    finally:
        _check = None


def require_may_write() -> None:
    """Raise what the check of `checking` raises; does nothing outside of it."""
    if _check is not None:
        _check()


@contextmanager
def pausing(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, a write that finds the disk full waits for room, and `tell` says so."""
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


def _wait(reason: str, first: bool) -> bool:
    """Wait a while and return True, if waiting for room is asked for; else return False."""
    if _tell is None:
        return False
    if first:
        _tell(f"{reason}: waiting for room, trying every {RETRY_S:g} s (Ctrl-C twice gives up)")
    time.sleep(RETRY_S)
    return True


def persist(path: Path, write: Callable[[], None], said: str = SAID, again: bool = True) -> None:
    """Call `write`, which writes `path` whole or not at all; call it again while the disk is full.

    `again=False`: once only, also in a run that waits for room.

    Raises:
        UserError: it failed, and nothing waits for room; the line, `said`, has the path, the reason
            and the free space. `checking` may raise, too.
    """
    first = True
    while True:
        try:
            require_may_write()
            return write()
        except Exception as error:
            reason = reason_of(error)
            if reason is None:
                raise
            line = said.format(path=path, reason=f"{reason}{describe_free(path)}")
            if not (again and _is_full(error) and _wait(line, first)):
                raise UserError(line) from error
            first = False


def reason_of(error: Exception) -> str | None:
    """Return why a write failed, in a few words; None if the error is about something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    words = str(error)
    if not any(sign in words for sign in SIGNS):
        return None
    first = words.splitlines()[0]
    return first if SIGNS[-1] in first else f"the disk took no more ({first})"


def _is_full(error: Exception) -> bool:
    """Return whether the reason is a lack of room; of torch, which does not say, it is assumed."""
    return error.errno in FULL if isinstance(error, OSError) else reason_of(error) is not None


def free_bytes(path: Path) -> int | None:
    """Return the free bytes of the disk on which `path` is or will be; None if that is unknown."""
    path = path.absolute()
    home = next((p for p in (path, *path.parents) if p.is_dir()), None)
    return None if home is None else shutil.disk_usage(home).free


def describe_free(path: Path) -> str:
    """Return the end of a message: " (12 MiB free)"."""
    free = free_bytes(path)
    return "" if free is None else f" ({free / 2**20:.0f} MiB free)"


def require_room(path: Path, size: int) -> None:
    """Check that `size` bytes fit on the disk of `path`; wait for room where that is asked for.

    All ranks call it; the main rank's size counts.

    Raises:
        UserError: they do not, and nothing waits for room.
    """
    first = True
    while True:
        free, size = distributed.from_main((free_bytes(path), size))
        if free is None or free >= size:
            return
        line = (
            f"cannot write checkpoint {path}: it needs about {size / 2**20:.0f} MiB "
            f"({free / 2**20:.0f} MiB free)"
        )
        if not _wait(line, first):
            raise UserError(f"{line}; earlier ones are kept")
        first = False
