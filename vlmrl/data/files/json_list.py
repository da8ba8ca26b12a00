"""Rows of a JSON file that is one list of objects, read whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["JsonRows", "json_objects"]


class JsonRows(Sequence[Mapping[str, Any]]):
    """The objects of a JSON file that is one list; an item that is none is a bad row.

    Raises:
        UserError: the file is missing, no JSON, or no list.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._items = _read(path)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        """Return the row at an index, counted from 0 in its place.

        Raises:
            UserError: the item is no object; the message names file and item.
        """
        item = self._items[index]
        where = f"{self._path} item {index if index >= 0 else len(self) + index}"
        if not isinstance(item, dict):
            raise UserError(f"{where}: expected a JSON object, got {type(item).__name__}")
        return {**item, WHERE: where}


def json_objects(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON file that is one list of them, whole.

    Raises:
        UserError: it is missing, or something else.
    """
    rows = _read(path)
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: expected a JSON list of objects")
    return rows


def _read(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a JSON list of objects")
    return rows
