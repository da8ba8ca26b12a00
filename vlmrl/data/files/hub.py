"""The only module that imports Hugging Face `datasets`: rows that lie in Arrow files on disk.

Rows come as plain Python values; images stay `{"bytes": ..., "path": ...}`, undecoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

_UNREADABLE = (OSError, ValueError, KeyError, pyarrow.ArrowException)


class ArrowRows(Sequence[Mapping[str, Any]]):
    """The rows of a data set, read from its memory-mapped file one at a time."""

    def __init__(self, data: datasets.Dataset, name: str) -> None:
        # In Arrow format nothing is decoded, however deep an image is nested.
        self._data = data.with_format("arrow")
        self._name = name

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        (row,) = self._data[index].to_pylist()
        return {**row, WHERE: f"{self._name} row {index}"}


def open_disk(folder: Path) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Split name -> rows of what `save_to_disk` wrote; a data set without splits is `train`.

    Raises:
        UserError: it cannot be read.
    """
    try:
        loaded = datasets.load_from_disk(str(folder))
    except _UNREADABLE as error:
        raise UserError(f"{folder}: cannot be read as a saved data set: {error}") from error
    parts = loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    return {name: ArrowRows(part, f"{folder}/{name}") for name, part in parts.items()}


def open_parquet(files: Sequence[Path]) -> Sequence[Mapping[str, Any]]:
    """Open the rows of Parquet files, in order, by way of an Arrow copy in the Hugging Face cache.

    Raises:
        UserError: a file cannot be read.
    """
    name = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    try:
        data = datasets.Dataset.from_parquet([str(file) for file in files])
    except (*_UNREADABLE, datasets.exceptions.DatasetGenerationError) as error:
        reason = error.__cause__ or error
        raise UserError(f"{name}: cannot be read as Parquet: {reason}") from error
    return ArrowRows(data, name)
