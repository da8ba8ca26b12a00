"""The only module that imports Hugging Face `datasets`: rows of a data set saved to disk.

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

    def __getitem__(self, index: object) -> Any:
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
