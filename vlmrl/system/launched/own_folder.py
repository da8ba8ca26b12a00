"""Folders for temporary files that a killed process leaves behind, and its successors on the machine remove.

The owner of such a folder holds a lock on a file in it, which goes with the process however it ends. A
folder whose lock can be had is a dead one's; no process id, which may be used again, is asked for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["OwnFolder", "remove_left"]

PREFIX = "vlmrl-"
OWNER = ".owner"
"""File of the lock; in it the machine's name, since folders may be on storage that others share."""


class OwnFolder(tempfile.TemporaryDirectory[str]):
    """A folder that goes with this process; what dead processes left in the same place goes before."""

    def __init__(self, name: str = "", inside: str | os.PathLike[str] | None = None) -> None:
        """Make a folder in `inside`, by default that for temporary files; its name begins with vlmrl-NAME.

        Raises:
            OSError: nothing can be written there.
        """
        where = Path(inside or tempfile.gettempdir())
        remove_left(where)
        super().__init__(prefix=PREFIX + name, dir=where)
        folder = Path(self.name)
        self._lock = (folder / f"{OWNER}.new").open("w")
        with suppress(OSError):  # a file system without locks: nobody will remove it
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._lock.write(socket.gethostname())
        self._lock.flush()
        (folder / f"{OWNER}.new").rename(folder / OWNER)  # nobody sees it without its lock

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        self._lock.close()


def remove_left(where: Path) -> None:
    """Remove the folders in `where` whose owners, processes of this user and machine, are dead."""
    for folder in where.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it has no such file, its owner lives, or it is gone
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / OWNER).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.read() == socket.gethostname():
                    shutil.rmtree(folder, ignore_errors=True)
