"""Checksums of a folder's files: a flipped bit, a cut or a missing file is noticed and named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

NAME = "checksums.json"


class Stated(TypedDict):
    """What is written down of a file."""

    bytes: int
    sha256: str


def describe(path: Path) -> Stated:
    """Return size and SHA-256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": _hash(path)}


def write_checksums(folder: Path, home: Path, known: Mapping[str, Stated] | None = None) -> None:
    """Write `home`/checksums.json with size and SHA-256 of every other file in `folder`.

    `known` are those of files that need not be read again, by their path in `folder`.
    """
    target, known = home / NAME, known or {}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != target]
    names = {path.relative_to(folder).as_posix(): path for path in files}
    found = {name: known.get(name) or describe(path) for name, path in names.items()}
    target.write_text(json.dumps(found, indent=1))


def find_damage(folder: Path, home: Path) -> str | None:
    """Say which file of `folder` is not as it was when its checksums were written; None if all are.

    A folder without checksums is not examined. Files that were added later do not count.
    """
    path = home / NAME
    if not path.exists():
        return None
    try:
        stated = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in _load(path).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{path} cannot be read"
    for name, (size, digest) in stated.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        if (found := file.stat().st_size) != size:
            return f"{file} has {found} bytes, expected {size}"
        if _hash(file) != digest:
            return f"{file} was changed after it was written (its SHA-256 differs)"
    return None


def hash_weights(folder: Path) -> str | None:
    """Return the SHA-256 of a folder's weights, all files in turn; None if it has none, as for a hub name."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        _feed(digest, path)
    return digest.hexdigest()


def _load(path: Path) -> dict[str, dict[str, str]]:
    loaded = json.loads(path.read_bytes())
    if not isinstance(loaded, dict) or not loaded:
        raise ValueError("expected a JSON object of files")
    return loaded


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    _feed(digest, path)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
