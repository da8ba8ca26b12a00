"""One attempt writes: a process whose attempt at a run is over writes nothing more to the run's files.

`vlmrl launch` numbers its attempts, and writes the number of the newest to a file next to the run folder
before it does anything else about an attempt that failed. A process may live on although its node
was given up (its network was cut, or it was frozen), so every write of a run first reads that number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.errors import UserError

__all__ = ["ATTEMPT", "Superseded", "attempt", "held", "path_of", "read", "require_current"]

ATTEMPT = "VLMRL_ATTEMPT"
"""Environment variable: the number of the attempt that a process belongs to, from 1."""

_held: tuple[Path, int] | None = None


class Superseded(Exception):
    """A later attempt writes this run."""


def path_of(folder: Path) -> Path:
    """Return the file with the newest attempt's number: `runs/.quickstart.attempt` for `runs/quickstart`.

    It is next to the folder, because a new run renames the folder of an earlier one.
    """
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.attempt")


def attempt() -> int:
    """Return the number of the attempt that this process belongs to; 0 without `vlmrl launch`."""
    return int(os.environ.get(ATTEMPT, "0"))


def read(folder: Path) -> int:
    """Return the newest attempt at the run in `folder`; 0 if there was none.

    Raises:
        UserError: the file is damaged.
    """
    path = path_of(folder)
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: expected the number of an attempt: {error}") from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, writes are made only while this process's attempt at the run in `folder` is the newest.

    Without `vlmrl launch` nothing changes.

    Raises:
        Superseded, UserError: as `require_current`.
    """
    global _held
    _held = (folder, attempt()) if attempt() else None
    try:
        require_current()
        yield
    finally:
        _held = None


def require_current() -> None:
    """Check that no later attempt has begun; does nothing outside of `held`.

    Raises:
        Superseded: one has.
        UserError: the file is not there: the folder is not the one that `vlmrl launch` sees.
    """
    if _held is None:
        return
    folder, own = _held
    newest = read(folder)
    if newest == 0:
        raise UserError(
            f"{path_of(folder)}: expected attempt {own}, got no file: the run folder must be visible to "
            "all machines, at the same path"
        )
    if newest != own:
        raise Superseded(f"attempt {newest} writes {folder} now; this is attempt {own}")
