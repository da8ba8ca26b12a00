"""Who may write to a run folder: one process owns it, and of a launched run only the newest attempt writes.

Two files lie next to the folder, because a new run renames the folder of an earlier one. `.NAME.lock` is
locked by the owner, and the kernel unlocks it when that process ends, however it ends: nothing goes stale,
and no clock counts. `.NAME.owner` says which process the owner is and which attempt is the newest.

Between machines this holds as far as `flock` does on their shared file system: NFS 4, NFS 3 with lockd,
CephFS, GPFS, and Lustre mounted with `flock`. Mounted with local_lock, nolock or localflock each
machine sees its own processes alone. The lock of a machine that is lost goes when the server gives it up.
Without any `flock` filelock takes the file's existence for the lock; that of a process that died on another
machine must then be deleted by hand.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from vlmrl.errors import UserError
from vlmrl.system import distributed, files
from vlmrl.system.files import read_json, write_json, writing

WAIT_S = 1.0
"""Seconds in which a lock must come free: a page that looks who the owner is holds it for a moment."""


class Superseded(Exception):
    """A later attempt writes this run."""


@dataclass(frozen=True)
class Owner:
    """The process that owns a run folder, and the newest attempt at its run; 0 if it was never launched."""

    pid: int
    host: str
    start: str
    attempt: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.start}"


def this_process(attempt: int = 0) -> Owner:
    """Return what this process says of itself."""
    return Owner(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S %z"), attempt)


@contextmanager
def own(folder: Path) -> Iterator[None]:
    """Own a run folder: a second run that wants it is refused until this block ends.

    Raises:
        UserError: another run owns the folder, and the line names its process, host and start; or it
            is a file.
    """
    if folder.is_file():
        raise UserError(f"{folder}: expected a folder for the run, got a file")
    path = lock_path(folder)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            acquired = FileLock(path).acquire(timeout=WAIT_S)
        except Timeout:
            owner = _read(folder) or "which has not said its name yet"
            raise UserError(
                f"{folder}: another run is writing to this folder ({owner}); wait for it, stop it, or "
                f"choose another run.name. If it died with its machine, delete {path}"
            ) from None
    with acquired:
        # One more than before, so that ranks of a launch that was killed write nothing into this run.
        before = newest_attempt(folder)
        write_json(owner_path(folder), asdict(this_process(before + 1 if before else 0)))
        try:
            yield
        finally:
            if not newest_attempt(folder):  # else the number counts on
                owner_path(folder).unlink(missing_ok=True)


def living_owner(folder: Path) -> Owner | None:
    """Return the process that owns a run folder now, None if there is none.

    Raises:
        UserError: the owner's file is damaged.
    """
    try:
        with lock_path(folder).open() as file:
            # Shared, and not by filelock: readers need no right to write, and do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:  # locked; or no `flock` here, and the file's existence is the lock
        return _read(folder)
    return None


def lock_path(folder: Path) -> Path:
    """Return the path of the lock: `runs/.quickstart.lock` for `runs/quickstart`."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.lock")


def owner_path(folder: Path) -> Path:
    """Return the path of what is said of the owner: `runs/.quickstart.owner` for `runs/quickstart`."""
    return lock_path(folder).with_suffix(".owner")


def newest_attempt(folder: Path) -> int:
    """Return the newest attempt of `vlmrl launch` at the run in `folder`; 0 if there was none.

    Raises:
        UserError: the owner's file is damaged.
    """
    owner = _read(folder)
    return owner.attempt if owner else 0


def begin_attempt(folder: Path) -> int:
    """Take the run in `folder`, which this process owns, from the attempt before; return the new number."""
    number = newest_attempt(folder) + 1
    write_json(owner_path(folder), asdict(this_process(number)))
    return number


def fenced(folder: Path) -> AbstractContextManager[None]:
    """Inside, writes are made only while this process's attempt at the run in `folder` is the newest.

    A lock cannot do this: a rank may live on although its machine was given up (its network was cut, or it
    was frozen). So the launcher writes the next number before it does anything else about a failed attempt,
    and every write of a rank first reads that number. Without `vlmrl launch` nothing changes.

    Raises:
        Superseded: a later attempt has begun.
        UserError: there is no number: the folder is not the one that `vlmrl launch` sees.
    """
    own = distributed.attempt()
    if not own:
        return nullcontext()

    def require_newest() -> None:
        newest = newest_attempt(folder)
        if newest == 0:
            raise UserError(
                f"{owner_path(folder)}: expected attempt {own}, got no file: the run folder must be "
                "visible to all machines, at the same path"
            )
        if newest != own:
            raise Superseded(f"attempt {newest} writes {folder} now; this is attempt {own}")

    return files.checking(require_newest)


def _read(folder: Path) -> Owner | None:
    path = owner_path(folder)
    if not path.exists():
        return None
    tree = read_json(path)
    try:
        return Owner(int(tree["pid"]), tree["host"], tree["start"], int(tree["attempt"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: expected pid, host, start and attempt: {tree}") from error
