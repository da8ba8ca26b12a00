"""What a model replied, by question, in files that outlive the run: nothing is asked twice.

A file has one JSON line for each reply. Each rank writes a file of its own and reads those of all, so
that a run goes on with any number of ranks, and no file has two writers. A killed run loses at most
the line that it was writing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from vlmrl.errors import UserError
from vlmrl.system import distributed

__all__ = ["Replies", "in_folder"]

log = logging.getLogger("vlmrl")


class Replies:
    """Replies by key; threads may share it. The files are read when the first reply is asked for.

    `own` is written, nothing if None; `others` are read as well.

    Raises:
        UserError: a file is none of replies.
    """

    def __init__(self, own: Path | None = None, others: Iterable[Path] = ()) -> None:
        self._own, self._others = own, tuple(others)
        self._lock = threading.Lock()
        self._known: dict[bytes, str] | None = None
        self._file: IO[bytes] | None = None
        self._is_torn = self._is_lost = False

    def recall(self, key: str) -> str | None:
        """Return the reply of a key (a hexadecimal digest), None if there is none."""
        with self._lock:
            return self._read_once().get(bytes.fromhex(key))

    def remember(self, key: str, reply: str) -> None:
        """Keep a reply; what a full disk has no room for is kept in memory, as a line of the log says."""
        with self._lock:
            self._read_once()[bytes.fromhex(key)] = reply
            if self._own is not None:
                try:
                    self._append(self._own, key, reply)
                except OSError as error:
                    self._is_torn = True
                    if not self._is_lost:
                        log.warning("replies are no longer kept in %s: %s", self._own, error)
                    self._is_lost = True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _read_once(self) -> dict[bytes, str]:
        if self._known is None:
            known: dict[bytes, str] = {}
            for path in (*self._others, *([self._own] if self._own else [])):
                if path.exists():
                    known |= _read(path)
            self._known = known
        return self._known

    def _append(self, own: Path, key: str, reply: str) -> None:
        if self._file is None:
            own.parent.mkdir(parents=True, exist_ok=True)
            self._file = own.open("ab", buffering=0)
            self._is_torn = self._file.tell() > 0  # the last line may be half a one
        line = json.dumps({"key": key, "reply": reply}) + "\n"
        self._file.write(("\n" if self._is_torn else "").encode() + line.encode())
        self._is_torn = False


def in_folder(folder: Path | None, name: str) -> Replies:
    """Return the replies of a model in a folder: those of this rank, and what other ranks have left."""
    if folder is None:
        return Replies()
    own = folder / f"{name}.rank{distributed.rank()}.jsonl"
    return Replies(own, sorted(path for path in folder.glob(f"{name}.rank*.jsonl") if path != own))


def _read(path: Path) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    with path.open("rb") as file:
        if (first := file.read(1)) not in (b"", b"\n", b"{"):
            raise UserError(f"{path} is no file of replies: expected JSON lines, got {first!r} ...")
        file.seek(0)
        for line in file:
            try:
                fields = json.loads(line)
                found[bytes.fromhex(fields["key"])] = str(fields["reply"])
            except (ValueError, TypeError, KeyError):
                continue  # half a line of a run that was killed, or a blank one
    return found
