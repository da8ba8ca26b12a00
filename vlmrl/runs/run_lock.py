"""One run folder, one owner: a lock file next to the folder, with host, process and start.

The lock is next to the folder, not in it, because a new run renames the folder of an earlier one. It
is created with O_EXCL, which NFS honours too, and its owner touches it every few seconds. A lock is
stale when its process is gone (same host) or when nobody has touched it for `STALE_S` seconds by the
clock of the file system, nor does while we watch (another host, whose processes cannot be seen). No
clock that is set can make a live lock stale.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from vlmrl.errors import UserError
from vlmrl.system.atomic_files import writing

__all__ = ["STALE_S", "describe_process", "has_ended", "lock_path", "name_process", "own"]

TOUCH_S = 5.0
"""Seconds between two touches by the owner."""
STALE_S = 60.0
"""Seconds without a touch after which a lock from another host is stale."""


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
        mine = _acquire(path, folder)
    stop = threading.Event()
    toucher = threading.Thread(target=_keep_touching, args=(path, stop), daemon=True)
    toucher.start()
    try:
        yield
    finally:
        stop.set()
        toucher.join()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def lock_path(folder: Path) -> Path:
    """Return the lock's path: `runs/.quickstart.lock` for `runs/quickstart`."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.lock")


def describe_process() -> dict[str, Any]:
    """Return what tells this process from all others, here and on other machines."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "process_start": _start_after_boot(pid),
        "boot": _boot(),
        "start": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Return whether a process that described itself has surely ended.

    That can be said only of one of this machine, since it was started.
    """
    here, boot = owner.get("host") == socket.gethostname(), owner.get("boot")
    if not (here and boot and boot == _boot() and isinstance(owner.get("pid"), int)):
        return False
    return _is_gone(owner)


def name_process(owner: Mapping[str, Any]) -> str:
    """Return the words for a process that described itself."""
    return f"process {owner.get('pid')} on {owner.get('host')}, started {owner.get('start')}"


def _acquire(path: Path, folder: Path) -> dict[str, Any]:
    mine = describe_process()
    for _ in range(10):  # each further round found a stale lock that another run took over first
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            owner = _read(path)
            if owner is not None and not _is_stale(path, owner):
                raise UserError(_refusal(folder, path, owner)) from None
            _remove_stale(path, owner)
            continue
        try:
            with os.fdopen(handle, "w") as file:
                file.write(json.dumps(mine))
        except BaseException:  # a lock that says nothing would keep every run away for a while
            path.unlink(missing_ok=True)
            raise
        return mine
    raise UserError(f"{folder}: several runs are starting in this folder; start one of them")


def _refusal(folder: Path, path: Path, owner: Mapping[str, Any]) -> str:
    return (
        f"{folder}: another run is writing to this folder ({name_process(owner)}); wait for it, stop it, "
        f"or choose another run.name. If it is surely dead, delete {path}"
    )


def _read(path: Path) -> dict[str, Any] | None:
    """Return what the lock says; None if it is gone. A lock in the making says nothing: {}."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether there is no such process on this machine."""
    try:
        started = _start_after_boot(owner["pid"])
    except psutil.NoSuchProcess:
        return True
    # The number may belong to a new process by now.
    return abs(started - float(owner.get("process_start") or 0)) > 2.0


def _is_stale(path: Path, owner: Mapping[str, Any]) -> bool:
    if owner.get("host") == socket.gethostname() and isinstance(owner.get("pid"), int):
        return _is_gone(owner) or owner.get("boot", "") != _boot()
    try:
        touched = path.stat().st_mtime
        if _now(path.parent) - touched <= STALE_S:
            return False
        time.sleep(2 * TOUCH_S)  # the clock may have been set since the last touch
        return path.stat().st_mtime == touched
    except FileNotFoundError:
        return True


def _start_after_boot(pid: int) -> float:
    """Return when a process began, in seconds after the boot: the time of day may be set."""
    return psutil.Process(pid).create_time() - psutil.boot_time()


def _boot() -> str:
    """Return what tells one boot of this machine from the next; empty where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _now(folder: Path) -> float:
    """Return the time by the clock of the file system, which may be another machine's."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as file:
        os.utime(file.name)
        return os.stat(file.name).st_mtime


def _remove_stale(path: Path, owner: Mapping[str, Any] | None) -> None:
    """Remove a lock only if it is still the one that was found stale."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if _read(aside) != owner:  # another run took over in between: this is its lock
        aside.rename(path)
    else:
        aside.unlink()


def _keep_touching(path: Path, stop: threading.Event) -> None:
    while not stop.wait(TOUCH_S):
        try:
            os.utime(path)
        except OSError:  # gone, or the disk does not answer: the run itself will say so
            continue
