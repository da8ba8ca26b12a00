"""What tells the rows of a source from others of the same number: a hash of a sample of rows and media."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.media.access import locate

ROWS = 64
"""Rows that are hashed, evenly over the source."""
MEDIA = 16
"""Of these the rows whose media are."""
MEDIA_BYTES = 65536
"""Bytes of a medium's file that are hashed, beside its size."""


def fingerprint(source: Source) -> dict[str, Any]:
    """Return the number of rows, and the hashes of a sample of them and of their media's files.

    It does not depend on where the data lie. A row or medium that cannot be read counts as one.
    """
    count = len(source.rows)
    chosen = [count * number // ROWS for number in range(ROWS)] if count > ROWS else range(count)
    rows, media = hashlib.sha256(), hashlib.sha256()
    for number, index in enumerate(chosen):
        try:
            _feed(rows, source.rows[index])
            if number % (ROWS // MEDIA) == 0:
                _feed_media(media, source, index)
        except (UserError, OSError) as error:  # the loader says which row, and why
            rows.update(type(error).__name__.encode())
    return {"rows": count, "sample": rows.hexdigest()[:16], "media": media.hexdigest()[:16]}


def _feed_media(digest: Any, source: Source, index: int) -> None:
    for medium in source.sample(index).media:
        path = locate(medium, source.access)
        if path is not None:
            with path.open("rb") as file:
                digest.update(str(path.stat().st_size).encode())
                digest.update(file.read(MEDIA_BYTES))


def _feed(digest: Any, value: object) -> None:
    """Hash a value of a row, but for what readers add to it, such as its place."""
    if isinstance(value, Mapping):
        for key in sorted(map(str, value)):
            if not key.startswith("__"):
                digest.update(key.encode("utf-8", "surrogatepass"))
                _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for each in value:
            _feed(digest, each)
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
