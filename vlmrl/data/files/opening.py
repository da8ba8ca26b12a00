"""Open the rows of a data file or folder by its format; nothing is loaded whole where the format allows.

Each row is a dictionary; under the key WHERE it says where it stands (`train.jsonl:17`), so that an
error can name it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from vlmrl.data.files.rows import JoinedRows, Rows
from vlmrl.data.files.text_rows import DelimitedRows, JsonlRows, JsonRows
from vlmrl.errors import UserError

_SHARD = re.compile(r"(?P<split>.+)-\d+-of-\d+\.(?P<ending>\w+)")
"""A file of a data set of the hub: `testA-00000-of-00001.parquet`."""
NAMED_SPLITS = ("train", "val", "valid", "validation", "dev", "test")


def open_rows(path: Path, split: str) -> Rows:
    """Open the rows of a split of a data file or folder.

    A file is one split: the one its name says (`test.jsonl`), else `train`. A folder holds
    `<split>.<format>` or parts `<split>-*.<format>`, in it or in its folder `data`, Parquet files in a
    folder `<split>`, or what `save_to_disk` wrote.

    Raises:
        UserError: no such file, format or split; the message says what there is.
    """
    if path.is_file():
        if split != (own := file_split(path)):
            raise UserError(f"{path} holds split {own!r}, not {split!r}")
        return _open_files([path])
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder")
    if parts := _saved(path):
        if split not in parts:
            raise UserError(f"{path}: no split {split!r}; there are: {', '.join(parts)}")
        return parts[split]
    if files := _files_of(path, split):
        return _open_files(files)
    names = sorted(
        file.name for file in path.iterdir() if file.suffix in FORMATS and file.is_file()
    )
    raise UserError(f"{path}: no file for split {split!r}; there are: {', '.join(names) or 'none'}")


def splits(path: Path) -> tuple[str, ...]:
    """Return the splits that `open_rows` can open; empty where there is no file of a known format."""
    if path.is_file():
        return (file_split(path),) if path.suffix in FORMATS else ()
    if not path.is_dir():
        return ()
    if parts := _saved(path):
        return tuple(parts)
    shards = [
        _SHARD.fullmatch(file.name) for at in (path, path / "data") for file in at.glob("*-of-*")
    ]
    others = sorted(
        {match["split"] for match in shards if match and f".{match['ending']}" in FORMATS}
    )
    named = [split for split in NAMED_SPLITS if _files_of(path, split)]
    return tuple(dict.fromkeys([*named, *others]))


def file_split(path: Path) -> str:
    """Return the split that a single data file holds: by its name, else `train`."""
    return path.stem if path.stem in NAMED_SPLITS else "train"


def _saved(folder: Path) -> Mapping[str, Rows]:
    """Return the rows of each split of a folder that `save_to_disk` wrote; empty: it did not."""
    if not any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
        return {}
    from vlmrl.data.files import hub  # slow to import, and few need it

    return hub.open_disk(folder)


def _files_of(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder: one, or parts of one format, in the order of their names."""
    for suffix in FORMATS:
        for pattern in (f"{split}{suffix}", f"{split}-*{suffix}", f"data/{split}-*{suffix}"):
            if files := sorted(folder.glob(pattern)):
                return files
    return sorted(folder.glob(f"{split}/*.parquet"))


def _open_files(files: list[Path]) -> Rows:
    suffix = files[0].suffix
    if suffix not in FORMATS:
        raise UserError(f"{files[0]}: unknown format {suffix!r}; there are: {', '.join(FORMATS)}")
    parts = [FORMATS[suffix](file) for file in files]
    return parts[0] if len(parts) == 1 else JoinedRows(parts)


def _open_columnar(file: Path) -> Rows:
    from vlmrl.data.files import columnar  # pyarrow is slow to import

    parquet = file.suffix == ".parquet"
    return columnar.ParquetRows(file) if parquet else columnar.ArrowFileRows(file)


def _open_tar(file: Path) -> Rows:
    from vlmrl.data.files.webdataset import TarRows

    return TarRows(file)


FORMATS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": JsonlRows,
    ".parquet": _open_columnar,
    ".arrow": _open_columnar,
    ".tar": _open_tar,
    ".tsv": DelimitedRows,
    ".csv": DelimitedRows,
    ".json": JsonRows,
}
"""What opens files of a format."""
