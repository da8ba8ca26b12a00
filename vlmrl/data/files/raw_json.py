"""JSON files mapped into memory and cut into the texts of their items, which are decoded when asked for.

The file itself stays on the disk: what is held is where each item stands.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any, TypeVar

import msgspec

__all__ = ["NotAsked", "cut", "load", "map_file"]

T = TypeVar("T")
NotAsked = msgspec.ValidationError
"""Raised where a JSON text is valid and something else than what was asked for."""

_BOM = b"\xef\xbb\xbf"


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file, without a byte order mark; pages are read when touched.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return whole[len(_BOM) :] if whole[: len(_BOM)] == _BOM else whole


def cut(text: memoryview | msgspec.Raw, into: type[T]) -> T:
    """Decode a JSON text as far as a type says: `list[Raw]` leaves the items as texts.

    Raises:
        NotAsked: it is another value than the type says.
        ValueError: it is no JSON.
    """
    return msgspec.json.decode(text, type=into)


def load(text: memoryview | msgspec.Raw) -> Any:
    """Decode a JSON text as Python's own module does.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    return json.loads(bytes(text))
