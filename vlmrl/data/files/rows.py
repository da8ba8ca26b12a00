"""What every reader of a data file returns: rows that are read when asked for and say where they stand.

A row that cannot be read raises a UserError that names its file and its place there.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from vlmrl.errors import DiskError, UserError
from vlmrl.plugins import nearest

WHERE = "__where__"
"""Key of a row under which a reader says where the row stands (`train.jsonl:17`)."""
DEMO = "__demonstration__"
"""Key of a row under which its demonstration is, a `Demo`."""

MAX_ITEMS = 50
"""Items of a nested list whose paths `paths` names."""

VARIANT = "variant"
"""Key of a row that `Variants` adds: which of several it is."""
SPLIT = "__split__"
"""Key of a row that `SplitRows` adds: of which split it is."""
Rows = Sequence[Mapping[str, Any]]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open the file of all rows, to read one of them.

    Raises:
        DiskError: it cannot be opened any more, which is the fault of no row.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DiskError(
            error.errno, f"{path}: cannot be read any more: {error.strerror}"
        ) from error
    with file:
        yield file


class JoinedRows(Sequence[Mapping[str, Any]]):
    """The rows of several files, one after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = parts
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        part = bisect.bisect_right(self._ends, index)
        return self.parts[part][index - (self._ends[part - 1] if part else 0)]


def narrowed(rows: Rows, columns: Sequence[str]) -> Rows:
    """Return the same rows with these columns alone where a reader can leave out others, else all."""
    if isinstance(rows, JoinedRows):
        return JoinedRows([narrowed(part, columns) for part in rows.parts])
    return rows.narrowed(columns) if isinstance(rows, Narrowing) else rows


@runtime_checkable
class Narrowing(Protocol):
    """Rows of a reader that can leave out columns."""

    def narrowed(self, columns: Sequence[str]) -> Rows:
        """Return the same rows with these columns alone."""


class Variants(Sequence[Mapping[str, Any]]):
    """Every row of `rows` `count` times, one behind the other, each with its number under `VARIANT`."""

    def __init__(self, rows: Rows, count: int) -> None:
        self._rows, self._count = rows, count

    def __len__(self) -> int:
        return len(self._rows) * self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row, variant = divmod(range(len(self))[index], self._count)
        return {**self._rows[row], VARIANT: variant}


class SplitRows(Sequence[Mapping[str, Any]]):
    """The rows of one of several files, each with the split that the file is under `SPLIT`."""

    def __init__(self, rows: Rows, split: str) -> None:
        self._rows, self._split = rows, split

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return {**self._rows[index], SPLIT: self._split}

    def narrowed(self, columns: Sequence[str]) -> SplitRows:
        """Return the same rows with these columns alone where the reader can leave out others."""
        return SplitRows(narrowed(self._rows, columns), self._split)


class RowsView(Sequence[Mapping[str, Any]]):
    """The rows at `positions` of the sequence `whole`, read when asked for."""

    def __init__(self, rows: Sequence[Mapping[str, object]], positions: Sequence[int]) -> None:
        self.whole, self.positions = rows, positions

    def over(self, rows: Rows) -> RowsView:
        """Return the rows at the same places of another sequence."""
        return RowsView(rows, self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return RowsView(self.whole, self.positions[index])
        return self.whole[self.positions[index]]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self.whole[position] for position in self.positions)

    def narrowed(self, columns: Sequence[str]) -> RowsView:
        """Return the same rows with these columns alone where the reader can leave out others."""
        return RowsView(narrowed(self.whole, columns), self.positions)


def cell(row: Mapping[str, object], column: str) -> Any:
    """Return the value of a column, or of one nested in it by a dotted path; None if there is none.

    `messages.0.content` takes an item of a list by its position, `objects.bbox` of a list of objects
    takes that key of each of them. A column whose own name has dots comes first.
    """
    if column in row or "." not in column:
        return row.get(column)
    return _walk(row, column.split("."))


def number(row: Mapping[str, object], column: str) -> float:
    """Return the number in a column, as `cell` finds it.

    Raises:
        UserError: there is no finite number; the message names the column.
    """
    value = cell(row, column)
    _check_column(row, column, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -sys.float_info.max <= value <= sys.float_info.max:
        raise UserError(f"column {column!r}: expected a finite number, got {value!r}")
    return float(value)


def word(row: Mapping[str, object], column: str, kind: type[str] | type[bool]) -> str | bool:
    """Return the text, or whether it is true, in a column, as `cell` finds it.

    Raises:
        UserError: there is no value of this kind; the message names the column.
    """
    value = cell(row, column)
    _check_column(row, column, value)
    if not isinstance(value, kind):
        wanted = "a text" if kind is str else "true or false"
        raise UserError(f"column {column!r}: expected {wanted}, got {value!r:.60}")
    return value


def _check_column(row: Mapping[str, object], column: str, value: object) -> None:
    if value is None and (top := column.partition(".")[0]) not in row and column not in row:
        known = sorted(key for key in row if not key.startswith("__"))
        raise UserError(f"no column {top!r}{nearest(top, known)}")


def paths(value: object, above: str = "") -> Iterator[str]:
    """Yield the names of a row's columns, and the dotted paths of what is nested in them."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{above}{key}"
            yield from paths(inner, f"{above}{key}.")
    elif isinstance(value, list):
        for number, item in enumerate(value[:MAX_ITEMS]):
            if isinstance(item, Mapping | list):
                yield from paths(item, above)
            if above:
                yield f"{above}{number}"
                yield from paths(item, f"{above}{number}.")


def _walk(value: object, steps: list[str]) -> Any:
    for number, step in enumerate(steps):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)] if int(step) < len(value) else None
        elif isinstance(value, list) and value:
            return [_walk(item, steps[number:]) for item in value]
        else:
            return None
    return value
