"""The rows of a benchmark's split as its data is published: which files, which rows, which columns.

What is computed of a row is computed when the row is asked for; only a benchmark that chooses rows,
or makes several of one, is read once to count them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.benchmarking.class_rows import class_rows
from vlmrl.benchmarking.coco_rows import coco_rows
from vlmrl.benchmarking.moment_rows import moment_rows
from vlmrl.data.files.opening import file_split, open_rows
from vlmrl.data.files.rows import WHERE, JoinedRows, Rows

__all__ = ["INDEX", "file_of"]

INDEX = "__index__"
"""Key of a row, and of a sample's `meta`, with the number of the row in its split."""
LAYOUTS = {"coco": coco_rows, "moments": moment_rows, "classes": class_rows}
"""Layouts that are no table, by name."""


def file_of(row: Mapping[str, Any]) -> Path:
    """Return the data file that a row stands in: some layouts tell its task by the file alone."""
    where = str(row[WHERE])
    return Path(re.split(r" (?:item|row) \d+$|:\d+$", where)[0])


@dataclass(frozen=True)
class Published:
    """How the published files become rows: see `vlmrl.benchmarking.base.Benchmark`."""

    files: tuple[str, ...]
    only: Mapping[str, str]
    each: str
    layout: str
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def published_rows(path: Path, split: str, how: Published) -> PublishedRows:
    """Return the rows of a split: each adapted, under `INDEX` its number.

    Raises:
        UserError: there is no such file or split.
    """
    named = [path / name for name in how.files if (path / name).exists()]
    read = LAYOUTS.get(how.layout, lambda one: open_rows(one, _split_of(one, split, named)))
    parts = [read(one) for one in named or [path]]
    return PublishedRows(parts[0] if len(parts) == 1 else JoinedRows(parts), how)


def _split_of(path: Path, split: str, named: Sequence[Path]) -> str:
    """Return the split to open: a file that the benchmark names holds its split, whatever its name says."""
    return file_split(path) if path in named and path.is_file() else split


class PublishedRows(Sequence[Mapping[str, Any]]):
    """Rows in which every value has a column of its own; `published` is how many the files have."""

    def __init__(self, rows: Rows, how: Published) -> None:
        self._rows, self._how = rows, how
        self._chosen = _choose(rows, how) if how.only or how.each else None
        self.published = len(rows)

    def __len__(self) -> int:
        return len(self._rows) if self._chosen is None else len(self._chosen)

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        at, item = (number, 0) if self._chosen is None else self._chosen[number]
        row = self._rows[at]
        if self._how.each:
            row = {**row, self._how.each: row[self._how.each][item]}
        where = f"{row[WHERE]} item {item}" if self._how.each else row[WHERE]
        return {**self._how.adapt(row), WHERE: where, INDEX: number}


def _choose(rows: Rows, how: Published) -> list[tuple[int, int]]:
    """Return the number of each chosen row, once for each item of its column `each`, with the item's."""
    chosen = []
    for at in range(len(rows)):
        row = rows[at]
        if all(str(row.get(column)) == value for column, value in how.only.items()):
            chosen += [(at, item) for item in range(len(row[how.each]) if how.each else 1)]
    return chosen
