"""The media columns of a row: one value or a list, under the names that published layouts use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["media_columns"]

COLUMNS = {
    "image": ("images", "image"),
    "video": ("videos", "video"),
    "audio": ("audios", "audio"),
}
"""Kind of media -> names of its column, the first that a row has being taken."""


def media_columns(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the media of a row by kind: image, video, audio; a kind that it has none of is left out."""
    found = {}
    for kind, names in COLUMNS.items():
        values = [row[name] for name in names if row.get(name) not in (None, "", [])]
        if values:
            found[kind] = values[0] if isinstance(values[0], list) else [values[0]]
    return found
