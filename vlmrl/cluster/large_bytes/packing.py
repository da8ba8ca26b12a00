"""Large bytes of calls and results go past Ray: it carries their hash and address, HTTP carries them.

Whoever has the bytes lends them out. A machine that reads them for many calls fetches them once and keeps
them in a folder.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmrl.cluster.large_bytes.folder import Folder
from vlmrl.cluster.large_bytes.lending import Reference, Server, fetch, name_of

__all__ = ["Desk", "Lender"]

LEAST = 16 * 2**10
"""Bytes from which it pays to send a hash."""


class _Packer(pickle.Pickler):
    """A pickler that hands large bytes to `lend`, and writes the reference that it returns (None: none)."""

    def __init__(self, file: io.BytesIO, lend: Callable[[bytes], Reference | None]) -> None:
        super().__init__(file, 4)  # with 5, arrays have no bytes of their own
        self._lend = lend

    def persistent_id(self, obj: Any) -> tuple[str, ...] | None:
        """See `pickle`."""
        if type(obj) is not bytes or len(obj) < LEAST:
            return None
        reference = self._lend(obj)
        return None if reference is None else tuple(reference)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[Reference], bytes]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, pid: Any) -> bytes:
        """See `pickle`."""
        return self._find(Reference(*pid))


def _pack(found: Any, lend: Callable[[bytes], Reference | None]) -> bytes:
    buffer = io.BytesIO()
    _Packer(buffer, lend).dump(found)
    return buffer.getvalue()


@dataclass(frozen=True)
class Desk:
    """Packs and unpacks in a process of an actor: its large bytes are in the folder of its machine."""

    folder: Folder
    url: str
    """Where the folder is lent out."""
    token: str
    """That of the server there."""

    def pack(self, found: Any) -> bytes:
        """Pickle something; its large bytes go to the folder, and if that has no room, along."""
        return _pack(found, self._lend)

    def unpack(self, packed: bytes) -> Any:
        """Return what was packed.

        Raises:
            OSError: large bytes are neither here nor where they were lent out.
        """
        return _Unpacker(io.BytesIO(packed), self.bring).load()

    def bring(self, reference: Reference) -> bytes:
        """Return bytes, fetched once for this machine, whoever asks here at the same time.

        Raises:
            OSError: they are neither here nor where they were lent out.
        """
        folder, name = self.folder, reference.name
        if (data := folder.read(name)) is not None:
            return data
        with folder.alone(name):
            if (data := folder.read(name)) is None:
                data = fetch(reference)
                with contextlib.suppress(OSError):  # then it is fetched again
                    folder.write(data, name)
        return data

    def _lend(self, data: bytes) -> Reference | None:
        name = name_of(data)
        try:
            if self.folder.read(name) is None:
                self.folder.write(data, name)
        except OSError:
            return None
        return Reference(self.url, name, self.token)


class Lender:
    """Packs calls in a rank, and holds their large bytes until the calls are done."""

    def __init__(self, host: str) -> None:
        """Lend out at this address of the machine, from the first large bytes on. `close` it."""
        self._host = host
        self._server: Server | None = None
        self._held: dict[str, tuple[bytes, int]] = {}
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()

    def pack(self, call: Any) -> tuple[bytes, list[Reference]]:
        """Pickle a call, and return it with its references, which are to be given back."""
        references: list[Reference] = []

        def lend(data: bytes) -> Reference:
            references.append(self._lend(data))
            return references[-1]

        return _pack(call, lend), references

    def unpack(self, packed: bytes) -> Any:
        """Return what a `Desk` packed.

        Raises:
            OSError: its large bytes are no longer there.
        """
        return _Unpacker(io.BytesIO(packed), fetch).load()

    def give_back(self, references: list[Reference]) -> None:
        """Note that the call which lent these is done."""
        with self._lock:
            for _, name, _ in references:
                data, users = self._held.pop(name)
                if users > 1:
                    self._held[name] = data, users - 1
                else:
                    self._names.pop(id(data), None)

    def close(self) -> None:
        """Lend out nothing more."""
        with self._lock:
            if self._server is not None:
                self._server.close()

    def _lend(self, data: bytes) -> Reference:
        with self._lock:
            if self._server is None:
                self._server = Server(self._find, self._host)
            name = self._names.get(id(data)) or name_of(data)
            kept, users = self._held.get(name, (data, 0))
            self._held[name] = kept, users + 1
            self._names[id(kept)] = name
            return Reference(self._server.url, name, self._server.token)

    def _find(self, name: str) -> bytes | None:
        held = self._held.get(name)
        return None if held is None else held[0]
