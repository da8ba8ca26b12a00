"""What a mirror has: objects that are written once, and manifests that say which of them are a checkpoint.

    attempt-3-9f2c1a/attempt.json         who writes here, and `alive`, which it keeps changing
    attempt-3-9f2c1a/step-40.0007/...     the files of the run folder that the attempt had not copied before
    attempt-3-9f2c1a/step-40.0007.json    the manifest: each file's object, its size and its SHA-256

A manifest is written when all its objects are there: without one a checkpoint does not exist. Each process
that writes has a folder of its own, so none can spoil what another one has written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vlmrl.policy import checkpoint
from vlmrl.policy.mirror.store import Missing, Store
from vlmrl.system.checksums import Stated, describe

__all__ = ["Attempt", "Damaged", "Manifest", "Stored", "attempts", "manifests", "read_manifest"]

FORMAT = 1


@dataclass(frozen=True, order=True)
class Attempt:
    """One process that writes, or wrote, to a mirror; a later one has a larger number."""

    number: int
    token: str

    @property
    def folder(self) -> str:
        """Return the name of its folder."""
        return f"attempt-{self.number}-{self.token}"


@dataclass(frozen=True)
class Stored:
    """An object, and what its file was."""

    name: str
    stated: Stated

    def mismatch(self, path: Path) -> str | None:
        """Say how a file that was read from the object differs from what was written."""
        if (found := describe(path)) == self.stated:
            return None
        if found["bytes"] != self.stated["bytes"]:
            return f"{self.name} has {found['bytes']} bytes, expected {self.stated['bytes']}"
        return f"{self.name} was changed after it was written (its SHA-256 differs)"


@dataclass(frozen=True)
class Manifest:
    """A checkpoint in a mirror: `number` counts the copies that its attempt began."""

    attempt: Attempt
    checkpoint: str
    number: int

    @property
    def order(self) -> tuple[Attempt, tuple[bool, int], int]:
        """Return what manifests are sorted by: the last is what a new process goes on from.

        A later attempt knew of the earlier ones when it began; where it went on from an older
        checkpoint, that was what its user wanted.
        """
        return self.attempt, checkpoint.order_of(Path(self.checkpoint)), self.number

    @property
    def folder(self) -> str:
        """Return the folder of the objects that were written for it."""
        return f"{self.attempt.folder}/{self.checkpoint}.{self.number:04}"

    @property
    def name(self) -> str:
        """Return the name of its object."""
        return f"{self.folder}.json"

    def encode(self, files: Mapping[str, Stored]) -> bytes:
        """Return the text of the manifest of these files, by their path in the run folder."""
        tree = {path: {"object": stored.name, **stored.stated} for path, stored in files.items()}
        return json.dumps({"format": FORMAT, "files": tree}, indent=1).encode()


class Damaged(Exception):
    """A manifest, or an object of it, is not what was written."""


def attempts(store: Store) -> list[Attempt]:
    """Return who has written to a mirror, the newest last."""
    found = (re.fullmatch(r"attempt-(\d+)-(\w+)", name) for name in store.children())
    return sorted(Attempt(int(match[1]), match[2]) for match in found if match)


def manifests(store: Store, among: Iterable[Attempt]) -> list[Manifest]:
    """Return the manifests of these attempts, in their order; they have not been read."""
    found = []
    for attempt in among:
        for name in store.children(attempt.folder):
            if match := re.fullmatch(r"((?:step|sft)-\d+)\.(\d+)\.json", name):
                found.append(Manifest(attempt, match[1], int(match[2])))
    return sorted(found, key=lambda manifest: manifest.order)


def read_manifest(store: Store, manifest: Manifest) -> dict[str, Stored]:
    """Return what a checkpoint consists of, by path in the run folder.

    Raises:
        Damaged: the manifest is torn, or names a path outside of the run folder.
        StoreFailed: the store could not be read.
    """
    try:
        tree = json.loads(store.read(manifest.name))
        if tree["format"] != FORMAT:
            raise Damaged(f"{manifest.name}: expected format {FORMAT}, got {tree['format']!r}")
        files = {
            str(path): Stored(
                str(f["object"]), {"bytes": int(f["bytes"]), "sha256": str(f["sha256"])}
            )
            for path, f in tree["files"].items()
        }
    except Missing as error:
        raise Damaged(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{manifest.name} cannot be read") from error
    for name in [*files, *(stored.name for stored in files.values())]:
        if PurePosixPath(name).is_absolute() or ".." in name.split("/") or "\\" in name:
            raise Damaged(f"{manifest.name} names {name!r}, which is outside of the run")
    if not any(path.startswith(f"checkpoints/{manifest.checkpoint}/") for path in files):
        raise Damaged(f"{manifest.name} names no file of {manifest.checkpoint}")
    return files
