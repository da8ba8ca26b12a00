"""Rows of CSV and TSV files, read one at a time by their offsets; quoted cells may hold line breaks."""

from __future__ import annotations

import csv
import io
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["DelimitedRows"]

csv.field_size_limit(sys.maxsize)  # a cell may hold an image as base64
_BOM = b"\xef\xbb\xbf"
_QUOTE = b'"'


class DelimitedRows(Sequence[Mapping[str, Any]]):
    """The rows below a header line; 16 bytes of memory a row. An empty cell is None, others are texts.

    Raises:
        UserError: the file cannot be read, or has no header.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._delimiter = "\t" if path.suffix == ".tsv" else ","
        self._starts = array("Q")
        self._lines = array("Q")
        self._index()
        if not self._starts:
            raise UserError(f"{path}: expected a header line, got an empty file")
        self._names = self._cells(0)
        if len({*self._names}) < len(self._names) or not all(self._names):
            raise UserError(f"{path}: expected columns with names of their own, got {self._names}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return the row at an index.

        Raises:
            UserError: it has another number of cells than the header; the message names file and line.
        """
        index = range(len(self))[index] + 1
        where = f"{self._path}:{self._lines[index]}"
        cells = self._cells(index)
        if len(cells) != len(self._names):
            raise UserError(f"{where}: expected {len(self._names)} cells, got {len(cells)}")
        row = {name: cell or None for name, cell in zip(self._names, cells, strict=True)}
        return {**row, WHERE: where}

    def _index(self) -> None:
        """Note where rows begin: a line break within quotes ends none."""
        start, inside = 0, False
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not inside and line.strip(b"\r\n"):
                    self._starts.append(start)
                    self._lines.append(number)
                if inside or _QUOTE in line:
                    inside = _ends_inside(line, inside, self._delimiter.encode())
                start += len(line)

    def _cells(self, index: int) -> list[str]:
        """Return the cells of a record; record 0 is the header."""
        end = self._starts[index + 1] if index + 1 < len(self._starts) else None
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            data = file.read() if end is None else file.read(end - self._starts[index])
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}:{self._lines[index]}: not UTF-8: {error}") from error
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter), [])


def _ends_inside(line: bytes, inside: bool, delimiter: bytes) -> bool:
    """Return whether a quoted cell is open at the end of a line; a quote opens at a cell's start only."""
    at = 0
    while True:
        if inside:
            at = _close(line, at)
            if at < 0:
                return True
            inside = False
        elif line.startswith(_QUOTE, at):
            at, inside = at + 1, True
            continue
        at = line.find(delimiter, at)
        if at < 0:
            return False
        at += 1


def _close(line: bytes, at: int) -> int:
    """Return the place behind the quote that closes a cell; -1: it stays open. A doubled quote is text."""
    while (at := line.find(_QUOTE, at)) >= 0:
        if not line.startswith(_QUOTE, at + 1):
            return at + 1
        at += 2
    return -1
