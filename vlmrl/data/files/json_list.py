"""Rows of a JSON file that is one list of objects, decoded when asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Raw

from vlmrl.data.files import raw_json
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["JsonRows", "json_objects"]


class JsonRows(Sequence[Mapping[str, Any]]):
    """The objects of a JSON file that is one list; an item that is none is a bad row.

    The file is mapped into memory; about 80 bytes an item are held. A file with NaN or Infinity, which
    are no JSON but Python's, is read whole.

    Raises:
        UserError: the file is missing, no JSON, or no list.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._items: Sequence[Any]
        try:
            self._items = raw_json.cut(raw_json.map_file(path), list[Raw])
        except raw_json.NotAsked as error:
            raise UserError(f"{path}: expected a JSON list of objects") from error
        except (OSError, ValueError, RecursionError):
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
        if isinstance(item, Raw):
            try:
                item = raw_json.load(item)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: cannot be read as JSON: {error}") from error
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
