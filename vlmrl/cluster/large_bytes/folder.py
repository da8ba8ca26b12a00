"""Bytes by their SHA-256 on the disk of a machine: a cache that several processes use, of limited size."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from vlmrl.cluster.large_bytes.lending import name_of

__all__ = ["Folder"]

KEPT = 8 * 2**30
"""Most bytes of a folder; the longest unused go first. No more than half of what the disk has free either."""


class Folder:
    """Bytes by their SHA-256, on the disk of this machine, for all processes of a user and all runs."""

    def __init__(self, path: Path, limit: int = KEPT) -> None:
        """Keep at most `limit` bytes in `path`, which is made.

        Raises:
            OSError: it cannot be made, or is another user's.
        """
        path.mkdir(mode=0o700, exist_ok=True)
        if path.stat().st_uid != os.getuid():
            raise PermissionError(f"{path}: is another user's")
        self.path, self._limit = path, limit

    @classmethod
    def of_machine(cls) -> Folder:
        """Return the one in this machine's folder for temporary files."""
        return cls(Path(tempfile.gettempdir()) / f"vlmrl-media-{os.getuid()}")

    def read(self, name: str) -> bytes | None:
        """Return the bytes; None if they are not here, or no longer as they were written."""
        if len(name) != 64 or not name.isalnum():
            return None
        try:
            data = (self.path / name).read_bytes()
        except OSError:
            return None
        if name_of(data) != name:
            (self.path / name).unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path / name)
        return data

    def write(self, data: bytes, name: str) -> None:
        """Keep these bytes, the SHA-256 of which is `name`.

        Raises:
            OSError: there is no room, or the disk fails.
        """
        if len(data) > self._make_room(len(data)):
            raise OSError(f"{self.path}: no room for {len(data)} bytes")
        part = self.path / f"{name}.{os.getpid()}-{threading.get_ident()}.part"
        try:
            part.write_bytes(data)
            part.replace(self.path / name)
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Inside, no other process of this machine is in such a block for these bytes."""
        with (self.path / f"{name[:2]}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, size: int) -> int:
        """Remove the longest unused until `size` more bytes fit; return the bytes that there is room for."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.endswith(".lock"):
                        told = entry.stat()
                        found.append((told.st_mtime_ns, told.st_size, entry.path))
        held = sum(size for _, size, _ in found)
        limit = min(self._limit, held + shutil.disk_usage(self.path).free // 2)
        for _, used, path in sorted(found):
            if held + size <= limit:
                break
            Path(path).unlink(missing_ok=True)
            held -= used
        return limit - held
