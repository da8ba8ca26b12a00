"""Rows of Parquet and Arrow files, read from the disk when asked for, in flat memory."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

BATCH_BYTES = 16 * 2**20
"""About as much is decoded at once, so that memory does not grow with a row group."""
MAX_BATCH_ROWS = 4096

_UNREADABLE = (OSError, ValueError, ArithmeticError, pyarrow.ArrowException)


class ParquetRows(Sequence[Mapping[str, Any]]):
    """The rows of a Parquet file. Rows in order cost one pass; a jump decodes its row group up to it.

    Raises:
        UserError: the file cannot be read as Parquet.
    """

    def __init__(self, path: Path, columns: Sequence[str] | None = None) -> None:
        self._path, self._columns = path, None if columns is None else [*columns]
        try:
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
        except _UNREADABLE as error:
            raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        self._ends = list(itertools.accumulate(group.num_rows for group in groups))
        size = sum(group.total_byte_size for group in groups)
        self._batch_rows = max(
            1, min(MAX_BATCH_ROWS, BATCH_BYTES * len(self) // max(size, 1) if self._ends else 1)
        )
        self._lock = threading.Lock()
        self._group = -1
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._start, self._batch = 0, pyarrow.RecordBatch.from_pylist([])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        where = f"{self._path} row {index}"
        group = bisect.bisect_right(self._ends, index)
        offset = index - (self._ends[group - 1] if group else 0)
        try:
            with self._lock:
                self._seek(group, offset)
                (row,) = self._batch.slice(offset - self._start, 1).to_pylist()
        except (*_UNREADABLE, StopIteration) as error:
            self._group = -1
            raise UserError(f"{where}: cannot be read as Parquet: {error}") from error
        return {**row, WHERE: where}

    def narrowed(self, columns: Sequence[str]) -> ParquetRows:
        """Return the same rows with these columns alone; the others are not read."""
        return ParquetRows(self._path, columns)

    def _seek(self, group: int, offset: int) -> None:
        """Decode batches of a row group until one holds the row at an offset in it."""
        if group != self._group or offset < self._start:
            self._batches = self._file.iter_batches(
                self._batch_rows, [group], self._columns, use_threads=False
            )
            self._group, self._start, self._batch = group, 0, next(self._batches)
        while offset >= self._start + len(self._batch):
            self._start += len(self._batch)
            self._batch = next(self._batches)


class ArrowFileRows(Sequence[Mapping[str, Any]]):
    """The rows of an Arrow file (a stream or a file of record batches), mapped into memory.

    Raises:
        UserError: the file cannot be read as Arrow.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            source = pyarrow.memory_map(str(path))
            try:
                self._table = pyarrow.ipc.open_file(source).read_all()
            except pyarrow.ArrowInvalid:  # a stream, as Hugging Face `datasets` writes
                source.seek(0)
                self._table = pyarrow.ipc.open_stream(source).read_all()
        except _UNREADABLE as error:
            raise UserError(f"{path}: cannot be read as Arrow: {error}") from error

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        where = f"{self._path} row {index}"
        try:
            (row,) = self._table.slice(index, 1).to_pylist()
        except _UNREADABLE as error:
            raise UserError(f"{where}: cannot be read as Arrow: {error}") from error
        return {**row, WHERE: where}
