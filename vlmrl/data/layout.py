"""The contract of a layout: one file a published form of a data set, recognised by itself.

A layout looks at a `DataPlace`, says why it takes it for its own (`recognise`), and turns each row into
one under our keys (`read`), which `vlmrl.data.typed_rows` makes a sample. Layouts of one row
per line use the place's own rows; layouts of several files (an annotation file and a folder of
images) build theirs in `rows`. The card `auto` finds all layouts through the plugin finder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from msgspec import Raw

from vlmrl.data.files import text_rows
from vlmrl.data.files.opening import open_rows, splits
from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.errors import UserError
from vlmrl.schema import Truth
from vlmrl.system import bounded_yaml

T = TypeVar("T")
MAX_NAMES = 2000
"""Files of a folder that a layout may look at to recognise it."""
HEAD_ROWS = 20
"""Rows that a layout may look at to recognise a place."""


@dataclass(frozen=True)
class DataPlace:
    """A data file or folder, as layouts look at it; everything is read when asked for, once."""

    path: Path
    media: Path | None = None
    """The folder of media that the user names, if any."""

    @property
    def media_home(self) -> Path:
        """Return the folder that media are searched in: the one named, else the data's own."""
        return self.media or self.home

    @property
    def home(self) -> Path:
        """Return the folder itself, or the one that the file is in: where relative paths start."""
        return self.path if self.path.is_dir() else self.path.parent

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Return paths of files of a folder relative to it, at most `MAX_NAMES` a folder; () for a file."""
        return tuple(_names(self.path, self.path, 3)) if self.path.is_dir() else ()

    @functools.cached_property
    def splits(self) -> tuple[str, ...]:
        """Return the splits whose rows can be opened; empty where the path holds no table of rows."""
        return splits(self.path)

    def rows(self, split: str) -> Rows:
        """Return the rows of a split, opened once.

        Raises:
            UserError: no such file, format or split.
        """
        return self.once(f"rows of {split}", lambda: open_rows(self.path, split))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what a layout makes of this place (an index, say), made once under its name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @functools.cached_property
    def _made(self) -> dict[str, Any]:
        return {}

    @functools.cached_property
    def head(self) -> tuple[Mapping[str, Any], ...]:
        """Return the first rows that can be read, without their place; empty: there are none."""
        if not self.splits:
            return ()
        try:
            rows = self.rows(self.splits[0])
        except UserError:  # another layout may read it; if none does, the card says why
            return ()
        readable = []
        for index in range(min(len(rows), HEAD_ROWS)):
            try:
                readable.append({k: v for k, v in rows[index].items() if k != WHERE})
            except UserError:  # the loader reports and counts it
                continue
        return tuple(readable)

    def has_keys(self, *keys: str) -> bool:
        """Return whether there are rows and the first of them has all these keys."""
        return bool(self.head) and all(key in self.head[0] for key in keys)

    @functools.cached_property
    def document(self) -> Mapping[str, Raw]:
        """Return the values, as JSON texts, of the object that a `.json` file holds; empty: it is none."""
        if self.path.suffix != ".json" or not self.path.is_file():
            return {}
        try:
            return text_rows.cut(text_rows.map_file(self.path), dict[str, Raw])
        except (OSError, ValueError, RecursionError):
            return {}

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """Return the mapping that a YAML file holds; empty for any other path."""
        if self.path.suffix not in (".yaml", ".yml") or not self.path.is_file():
            return {}
        try:
            document = bounded_yaml.load(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


@dataclass(frozen=True)
class Layout:
    """Base of layouts; fields of a subclass are options, which the card `auto` passes on.

    Class variables: `title` (what people call it), `origin` (where it is described), `narrows` (names
    of layouts that this one is a special case of: where both are recognised, this one is taken),
    `fields` (our key -> where it stands in the layout, for errors and the documentation), `verifiers`
    (what fits), `reward_columns` (where a row names verifiers of its own, which `rewards_of` reads).
    """

    title: ClassVar[str] = ""
    origin: ClassVar[str] = ""
    narrows: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, str]] = {}
    verifiers: ClassVar[tuple[str, ...]] = ()
    reward_columns: ClassVar[tuple[str, ...]] = ()

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place is of this layout, in words for a person; None: it is not."""
        raise TypeError(f"{type(self).__name__} must define recognise")

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the rows of a split, each with its place under `WHERE`; the place's own by default.

        Raises:
            UserError: no such file, format or split.
        """
        return place.rows(split)

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the splits of a place; the place's own by default."""
        return place.splits

    def media_root(self, place: DataPlace) -> str:
        """Return the folder that relative media paths start from and must stay inside."""
        return str(place.media_home)

    def rewards_of(self, row: Mapping[str, object]) -> Any:
        """Return the verifiers that a row names for itself, for a check of all rows before training.

        Only the columns `reward_columns` of the row may be looked at.

        Raises:
            UserError: the row names them wrongly.
        """
        return None

    @classmethod
    def write_example(cls, folder: Path) -> tuple[dict[str, Any], list[Truth]]:
        """Write a few rows in the layout; return options of `auto` that read them, and their truths.

        For the contract test of a layout outside the repository.
        """
        raise TypeError(f"{cls.__name__} must define write_example")

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys (`vlmrl.data.typed_rows.KEYS`).

        Raises:
            UserError: what is wrong with this row; the message names the key.
        """
        raise TypeError(f"{type(self).__name__} must define read")


def _names(folder: Path, top: Path, levels: int) -> list[str]:
    """Return the files below a folder, those of the folder itself first."""
    try:
        entries = sorted(folder.iterdir())[:MAX_NAMES]
    except OSError:
        return []
    names = [str(entry.relative_to(top)) for entry in entries if entry.is_file()]
    for entry in entries:
        if levels > 1 and entry.is_dir():
            names += _names(entry, top, levels - 1)
    return names
