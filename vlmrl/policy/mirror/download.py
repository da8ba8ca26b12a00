"""A run comes back from its mirror: the newest whole checkpoint, and the logs that were copied with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.policy.mirror.manifests import (
    Damaged,
    Manifest,
    Stored,
    attempts,
    manifests,
    read_manifest,
)
from vlmrl.policy.mirror.store import Missing, Store
from vlmrl.system.atomic_files import writing
from vlmrl.system.disk_space import describe_free, free_bytes
from vlmrl.system.launched import fence

__all__ = ["download_newest"]

WORKING = ".mirror.part"
LOGS = "logs/"
"""Where `vlmrl launch` keeps the output of ranks, by the number of the attempt."""


def download_newest(
    store: Store, folder: Path, local: Path | None, tell: Callable[[str], None]
) -> Path | None:
    """Return the checkpoint to go on from: `local`, or the mirror's newest whole one where it is further.

    That is downloaded into the run folder with the files that were copied with it, which replace those
    of the same name. One that is damaged is told of, and the next older one taken.

    Raises:
        UserError: the disk is too small or cannot be written, or all checkpoints of the mirror are
            damaged and there is no local one.
        StoreFailed: the store could not be read.
    """
    damage = ""
    for manifest in reversed(manifests(store, attempts(store))):
        found = checkpoint.order_of(Path(manifest.checkpoint))
        if local is not None and found <= checkpoint.order_of(local):
            return local
        try:
            path = _download(store, manifest, folder)
        except Damaged as error:
            damage = str(error)
            tell(
                f"mirror {store.url}: checkpoint {manifest.checkpoint} is damaged and passed over: "
                f"{damage}"
            )
            continue
        tell(f"going on from {manifest.checkpoint} of the mirror {store.url}")
        return path
    if damage and local is None:
        raise UserError(
            f"run.mirror: {store.url}: all checkpoints are damaged (last: {damage}); delete it, or choose "
            "another run.name, to start anew"
        )
    return local


def _download(store: Store, manifest: Manifest, folder: Path) -> Path:
    files = read_manifest(store, manifest)
    working = folder / WORKING
    shutil.rmtree(working, ignore_errors=True)
    _require_room(folder, files, manifest)
    try:
        for path, stored in files.items():
            _download_file(store, stored, working / path)
        return _move(working, folder, files, manifest.checkpoint)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _download_file(store: Store, stored: Stored, path: Path) -> None:
    try:
        with writing(path):
            store.get(stored.name, path)
    except Missing as error:
        raise Damaged(str(error)) from error
    if wrong := stored.mismatch(path):
        raise Damaged(wrong)


def _move(working: Path, folder: Path, files: dict[str, Stored], name: str) -> Path:
    """Give verified files their names in the run folder; the checkpoint, which makes it one, is the last."""
    fence.require_current()
    final = folder / "checkpoints" / name
    with writing(folder):
        for path in files:
            if path.startswith(LOGS) and (folder / path).exists():
                continue  # `vlmrl launch` counts its attempts anew, and this one is written now
            if not path.startswith(f"checkpoints/{name}/"):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(working / path, folder / path)
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(working / "checkpoints" / name, final)
    return final


def _require_room(folder: Path, files: dict[str, Stored], manifest: Manifest) -> None:
    size, free = sum(stored.stated["bytes"] for stored in files.values()), free_bytes(folder)
    if free is not None and free < size:
        raise UserError(
            f"{folder}: cannot download {manifest.checkpoint}: it needs {size / 2**20:.0f} MiB"
            f"{describe_free(folder)}"
        )
