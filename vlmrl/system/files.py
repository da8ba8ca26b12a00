"""Files written whole or not at all, and JSON lines that survive a killed run.

A file appears under its name only when every byte is on the disk (temporary file, fsync, rename); a
failing write (disk full, no permission) is one clear line, and leaves what was there before. A run
that waits for room on a full disk (`pausing`) goes on with the same write.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from vlmrl.errors import UserError
from vlmrl.system import distributed

# --------------------------------------------------------------------------------------------------
# A full disk: a failing write is one line, and a run that is told to waits for room.
#
# Libraries have no common class for a write that failed: torch and safetensors raise their own errors,
# which this module recognises by their words.


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
    """Inside, every write first calls `check`, which raises where this process may not write any more.

    Where there is a check already, both are called.
    """
    global _check
    before = _check

    def both() -> None:
        if before is not None:
            before()
        check()

    _check = both
    try:
        require_may_write()
        yield
    finally:
        _check = before


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
            # Of torch, which does not say it, a lack of room is assumed.
            is_full = error.errno in FULL if isinstance(error, OSError) else True
            if not (again and is_full and _wait(line, first)):
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


def free_bytes(path: Path) -> int | None:
    """Return the free bytes of the disk on which `path` is or will be; None if that is unknown."""
    path = path.absolute()
    home = next((p for p in (path, *path.parents) if p.is_dir()), None)
    return None if home is None else shutil.disk_usage(home).free


def leads_outside(path: str) -> bool:
    """Return whether a path, with `/` between its parts, is not one below the folder that it is put in."""
    parts = PurePosixPath(path)
    return parts.is_absolute() or ".." in parts.parts or "\\" in path or not parts.parts


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


# --------------------------------------------------------------------------------------------------
# Checksums of a folder's files: a flipped bit, a cut or a missing file is noticed and named.


NAME = "checksums.json"


class Stated(TypedDict):
    """What is written down of a file."""

    bytes: int
    sha256: str


def describe(path: Path) -> Stated:
    """Return size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": _hash(path)}


def write_checksums(folder: Path, home: Path, known: Mapping[str, Stated] | None = None) -> None:
    """Write `home`/checksums.json with size and SHA-256 of every other file in `folder`.

    `known` are those of files that need not be read again, by their path in `folder`.
    """
    target, stated = home / NAME, {**(known or {})}
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    stated = {n: stated.get(n) or describe(path) for n, path in files.items() if path != target}
    target.write_text(json.dumps(stated, indent=1))


def find_damage(folder: Path, home: Path) -> str | None:
    """Say which file of `folder` is not as it was when its checksums were written; None if all are.

    A folder without checksums is not examined. Files that were added later do not count.
    """
    path = home / NAME
    if not path.exists():
        return None
    try:
        tree = json.loads(path.read_bytes())
        stated = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in tree.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        stated = {}
    if not stated:
        return f"{path} cannot be read"
    for name, (size, digest) in stated.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        if (actual := file.stat().st_size) != size:
            return f"{file} has {actual} bytes, expected {size}"
        if _hash(file) != digest:
            return f"{file} was changed after it was written (its SHA-256 differs)"
    return None


def hash_weights(folder: Path) -> str | None:
    """Return the SHA-256 of a folder's weights, all files in turn; None if it has none, as for a hub name."""
    files = sorted(folder.glob("*.safetensors"))
    return _hash(*files) if files else None


def _hash(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------
# Files that are written whole or not at all, and lines that are appended.


Stamp = tuple[int, int, int]


def stamp_of(file: os.stat_result) -> Stamp:
    """Return what differs once a file was written again: inode, time in nanoseconds, bytes."""
    return file.st_ino, file.st_mtime_ns, file.st_size


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write into a UserError that names the file, the reason and the free space."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = reason_of(error)
        if reason is None:
            raise
        raise UserError(SAID.format(path=path, reason=f"{reason}{describe_free(path)}")) from error


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all; make the folders above it."""
    return write_whole(path, lambda temporary: temporary.write_bytes(data))


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` make a file under another name, then give it its own; make the folders above it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")

    def attempt() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            require_may_write()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    persist(path, attempt)
    return path


def write_json(path: Path, tree: Mapping[str, object]) -> Path:
    """Write an indented JSON file."""
    return write_bytes(path, (json.dumps(tree, indent=2, allow_nan=False) + "\n").encode())


def write_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> Path:
    """Write a JSONL file."""
    return write_bytes(path, b"".join(map(_line, lines)))


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append one JSON line, whole or not at all."""
    append_lines(path, [line])


def append_lines(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Append JSON lines, all of them or, where the disk is full, none."""
    data = b"".join(map(_line, lines))

    def attempt() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, "the disk took only a part of the line")
            except BaseException:
                file.truncate(before)
                raise

    persist(path, attempt)


def _line(line: Mapping[str, object]) -> bytes:
    return (json.dumps(line, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file as a dictionary.

    Raises:
        UserError: it is missing or is not a JSON object.
    """
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(tree).__name__}")
    return tree


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file; a last line without its newline (a killed run) is left out.

    Raises:
        UserError: it is missing, or another line is not a JSON object; the message names the line.
    """
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number}: expected an object, got {line[:40]!r}")
        rows.append(row)
    return rows


def truncate_lines(path: Path, step: int) -> None:
    """Keep the lines of a JSONL file whose `step` is at most this; a torn last line goes too.

    Raises:
        UserError: a line is damaged, or of no later step than the one before; names it.
    """
    if not path.exists():
        return
    try:
        lines, last = read_lines(path), -1
        for number, line in enumerate(lines, start=1):
            if not isinstance(stated := line.get("step"), int):
                raise UserError(f"{path}: line {number}: expected a step, got {str(line)[:40]!r}")
            if stated <= last:
                raise UserError(
                    f"{path}: line {number}: expected a step above {last}, got {stated}"
                )
            last = stated
    except UserError as error:
        raise UserError(f"{error}; mend or delete the damaged line") from error
    write_lines(path, [line for line in lines if line["step"] <= step])
