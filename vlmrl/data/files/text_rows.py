"""Rows of JSONL files, read one at a time by the offsets of their lines."""

from __future__ import annotations

import csv
import io
import json
import mmap
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from vlmrl.data.files.rows import WHERE, opened
from vlmrl.errors import UserError

# --------------------------------------------------------------------------------------------------
# Rows of CSV and TSV files, read one at a time by their offsets; quoted cells may hold line breaks.


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
        with opened(self._path) as file:
            file.seek(self._starts[index])
            data = file.read() if end is None else file.read(end - self._starts[index])
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}:{self._lines[index]}: not UTF-8: {error}") from error
        try:
            return next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter), [])
        except csv.Error as error:
            raise UserError(f"{self._path}:{self._lines[index]}: {error}") from error


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


# --------------------------------------------------------------------------------------------------
# JSON files mapped into memory and cut into the texts of their items, which are decoded when asked for.
#
# The file itself stays on the disk: what is held is where each item stands.


T = TypeVar("T")
NotAsked = msgspec.ValidationError
"""Raised where a JSON text is valid and something else than what was asked for."""


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


# --------------------------------------------------------------------------------------------------
# Rows of a JSON file that is one list of objects, decoded when asked for.


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
            self._items = cut(map_file(path), list[Raw])
        except NotAsked as error:
            raise UserError(f"{path}: expected a JSON list of objects") from error
        except (OSError, ValueError, RecursionError):
            self._items = _read(path)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        item = self._items[index]
        where = f"{self._path} item {index if index >= 0 else len(self) + index}"
        if isinstance(item, Raw):
            try:
                item = load(item)
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


# --------------------------------------------------------------------------------------------------


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
        where = f"{self._path}:{self._lines[index]}"
        with opened(self._path) as file:
            file.seek(self._starts[index])
            line = file.readline()
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
        return {**row, WHERE: where}
