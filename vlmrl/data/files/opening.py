"""Rows of data files: JSONL, Parquet, Hugging Face data sets on disk; nothing is loaded whole.

Each row is a dictionary; under the key WHERE it says where it stands (`train.jsonl:17`), so that an
error can name it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["JsonlRows", "file_split", "json_objects", "open_rows"]

Rows = Sequence[Mapping[str, Any]]

_NAMED_SPLITS = ("train", "val", "valid", "validation", "dev", "test")


def json_objects(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON file that is one list of them, whole.

    Raises:
        UserError: it is missing, or something else.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: expected a JSON list of objects")
    return rows


def open_rows(path: Path, split: str) -> Rows:
    """Open the rows of a split of a data file or folder.

    A file is one split: the one its name says (`test.jsonl`), else `train`. A folder holds
    `<split>.jsonl`, `<split>.parquet` (or parts `<split>-*.parquet`), or what `save_to_disk` wrote.

    Raises:
        UserError: no such file, format or split; the message says what there is.
    """
    if path.is_dir():
        return _open_folder(path, split)
    if not path.is_file():
        raise UserError(f"{path}: no such file or folder")
    if split != (own := file_split(path)):
        raise UserError(f"{path} holds split {own!r}, not {split!r}")
    return _open_files([path])


def file_split(path: Path) -> str:
    """Return the split that a single data file holds: by its name, else `train`."""
    return path.stem if path.stem in _NAMED_SPLITS else "train"


def _open_folder(folder: Path, split: str) -> Rows:
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        from vlmrl.data.files import hub  # slow to import, and few need it

        parts: Mapping[str, Rows] = hub.open_disk(folder)
        if split not in parts:
            raise UserError(f"{folder}: no split {split!r}; there are: {', '.join(parts)}")
        return parts[split]
    for pattern in (f"{split}.jsonl", f"{split}.parquet", f"{split}-*.parquet"):
        if files := sorted(folder.glob(pattern)):
            return _open_files(files)
    found = sorted(file.name for end in ("jsonl", "parquet") for file in folder.glob(f"*.{end}"))
    raise UserError(
        f"{folder}: no file for split {split!r}; there are: {', '.join(found) or 'none'}"
    )


def _open_files(files: list[Path]) -> Rows:
    suffix = files[0].suffix
    if suffix == ".jsonl":
        return JsonlRows(files[0])
    if suffix == ".parquet":
        from vlmrl.data.files import hub

        return hub.open_parquet(files)
    raise UserError(f"{files[0]}: unknown format {suffix!r}; there are: .jsonl, .parquet")


class JsonlRows(Sequence[Mapping[str, Any]]):
    """The lines of a JSONL file that are not blank, read one at a time by their offsets."""

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
        """Read the row at an index.

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
