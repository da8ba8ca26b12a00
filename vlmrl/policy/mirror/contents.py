"""The files of a run folder that belong to a checkpoint, as they are copied."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from vlmrl.errors import UserError
from vlmrl.policy.mirror.manifests import Manifest, Stored
from vlmrl.policy.mirror.store import Store
from vlmrl.system.checksums import NAME as CHECKSUMS
from vlmrl.system.checksums import Stated, describe, describe_bytes

__all__ = ["Contents"]

MAX_READ = 64 * 2**20
"""Bytes up to which a file is read at once: it may grow while it is copied."""
LEFT_OUT = ("exports",)
"""Folders of a run that can be made again from a checkpoint."""


class Contents:
    """What an attempt has copied from a run folder; a file that has not changed is copied once.

    `bytes_done` counts the bytes of the copy under way.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._copied: dict[str, tuple[tuple[int, int], Stored]] = {}
        self.bytes_done = 0

    def size(self, name: str) -> int:
        """Return the bytes of a checkpoint and the files that go with it."""
        return sum((self._folder / path).stat().st_size for path in self._paths(name))

    def copy(self, manifest: Manifest, go_on: Callable[[], None]) -> dict[str, Stored]:
        """Copy a checkpoint and the files that go with it, but for the manifest; `go_on` may end it.

        Raises:
            StoreFailed: the store did not take a file.
            UserError: the checkpoint is not what was written.
        """
        self.bytes_done = 0
        files = {}
        for path in self._paths(manifest.checkpoint):
            go_on()
            before = self.bytes_done
            try:
                files[path] = self._copy_file(path, f"{manifest.folder}/{path}")
            except FileNotFoundError:  # deleted meanwhile; a checkpoint's are looked for below
                continue
            self.bytes_done = before + files[path].stated["bytes"]
        self._require_whole(manifest.checkpoint, files)
        return files

    def forget(self, deleted: set[str]) -> None:
        """Take note that objects are gone."""
        self._copied = {p: c for p, c in self._copied.items() if c[1].name not in deleted}

    def _copy_file(self, path: str, name: str) -> Stored:
        file = self._folder / path
        found = file.stat()
        version = (found.st_mtime_ns, found.st_size)
        known = self._copied.get(path)
        if known is not None and known[0] == version:
            return known[1]
        stated: Stated
        if found.st_size <= MAX_READ:
            data = file.read_bytes()
            stated = describe_bytes(data)
            if known is not None and known[1].stated == stated:
                return known[1]
            self._store.write(name, data)
        else:
            stated, done = describe(file), self.bytes_done
            self._store.put(file, name, lambda moved: setattr(self, "bytes_done", done + moved))
        stored = Stored(name, stated)
        self._copied[path] = (version, stored)
        return stored

    def _require_whole(self, name: str, files: dict[str, Stored]) -> None:
        """Compare what was copied with the checksums that were written with the checkpoint."""
        home = self._folder / "checkpoints" / name
        expected = json.loads((home / "trainer" / CHECKSUMS).read_bytes())
        for inner, stated in expected.items():
            stored = files.get(f"checkpoints/{name}/{inner}")
            if stored is None or stored.stated != stated:
                raise UserError(f"{home / inner} was changed after it was written")

    def _paths(self, name: str) -> list[str]:
        """Return the paths of the files, those of the checkpoint last."""
        own: list[str] = []
        rest: list[str] = []
        for top, folders, files in os.walk(self._folder):
            parts = Path(top).relative_to(self._folder).parts
            folders[:] = [
                f for f in folders if not f.startswith(".") and self._goes(parts, f, name)
            ]
            paths = [Path(*parts, f).as_posix() for f in files if not f.startswith(".")]
            (own if parts[:1] == ("checkpoints",) else rest).extend(paths)
        return [*sorted(rest), *sorted(own)]

    @staticmethod
    def _goes(parts: tuple[str, ...], folder: str, name: str) -> bool:
        if parts == ("checkpoints",):
            return folder == name
        return bool(parts) or folder not in LEFT_OUT
