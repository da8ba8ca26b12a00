"""Rows of JSONL files, read one at a time by the offsets of their lines."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["JsonlRows"]


class JsonlRows(Sequence[Mapping[str, Any]]):
    """The lines of a JSONL file that are not blank; 16 bytes of memory a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = array("Q")
        self._lines = array("Q")
        start = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._starts.append(start)
                    self._lines.append(number)
                start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: Any) -> Any:
        """Return the row at an index.

        Raises:
            UserError: the line is not a JSON object; the message names file and line.
        """
        where = f"{self._path}:{self._lines[index]}"
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            line = file.readline()
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
        return {**row, WHERE: where}
