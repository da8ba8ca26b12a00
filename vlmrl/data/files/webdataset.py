"""Rows of WebDataset tar files: members with the same name but for their ending are one row.

`000017.jpg`, `000017.json` and `000017.txt` are a row with the columns `jpg` (bytes), `json` (what it
holds) and `txt` (its text); `__key__` is `000017`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE, opened
from vlmrl.errors import UserError

TEXTS = ("txt", "text", "cls", "cap", "caption")


class TarRows(Sequence[Mapping[str, Any]]):
    """The rows of a tar file that is not compressed, read by the places of their members.

    Raises:
        UserError: the file cannot be read as a tar file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, list[tuple[str, int, int]]] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if member.isfile():
                        # The ending begins at the first dot of the file's name.
                        folder, slash, file = member.name.rpartition("/")
                        stem, _, ending = file.partition(".")
                        part = (ending.lower(), member.offset_data, member.size)
                        self._rows.setdefault(f"{folder}{slash}{stem}", []).append(part)
        except (OSError, tarfile.TarError) as error:
            raise UserError(f"{path}: cannot be read as a tar file: {error}") from error
        self._keys = list(self._rows)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        key = self._keys[index]
        where = f"{self._path}:{key}"
        row: dict[str, Any] = {"__key__": key}
        with opened(self._path) as file:
            for ending, offset, size in self._rows[key]:
                file.seek(offset)
                row[ending] = _value(ending, file.read(size), where)
        return {**row, WHERE: where}


def _value(ending: str, data: bytes, where: str) -> Any:
    kind = ending.rpartition(".")[2]
    try:
        if kind == "json":
            return json.loads(data)
        return data.decode("utf-8") if kind in TEXTS else data
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: member .{ending} cannot be read: {error}") from error
