"""Files written whole or not at all, and JSON lines that survive a killed run.

A file appears under its name only when every byte is on the disk (temporary file, fsync, rename); a
failing write (disk full, no permission) is one clear line, and leaves what was there before. A run
that waits for room on a full disk (`disk_space.pausing`) goes on with the same write.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.system.disk_space import describe_free, persist, reason_of, require_may_write

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
        raise UserError(f"{path}: cannot be written: {reason}{describe_free(path)}") from error


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all; make the folders above it."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(data)

    return write_whole(path, write)


def write_whole(path: Path, write: Callable[[Path], None]) -> Path:
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


def write_json(path: Path, tree: Mapping[str, Any]) -> Path:
    """Write an indented JSON file."""
    return write_bytes(path, (json.dumps(tree, indent=2, allow_nan=False) + "\n").encode())


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write a JSONL file."""
    return write_bytes(path, b"".join(map(_line, lines)))


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON line, whole or not at all."""
    append_lines(path, [line])


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
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


def _line(line: Mapping[str, Any]) -> bytes:
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
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number}: expected an object, got {line[:40]!r}")
        found.append(row)
    return found


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
            if not isinstance(found := line.get("step"), int):
                raise UserError(f"{path}: line {number}: expected a step, got {str(line)[:40]!r}")
            if found <= last:
                raise UserError(f"{path}: line {number}: expected a step above {last}, got {found}")
            last = found
    except UserError as error:
        raise UserError(f"{error}; mend or delete the damaged line") from error
    write_lines(path, [line for line in lines if line["step"] <= step])
