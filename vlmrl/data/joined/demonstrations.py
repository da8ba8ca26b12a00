"""Demonstrations that a teacher wrote and the run's verifiers passed: what `vlmrl data demonstrate` writes.

A file is JSON lines: the manifest of how it came about, then a line for each row of the sources, with the
best completion that passed, or with the reason why none is kept. A row is named by its place in its whole
split.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vlmrl.data.files.rows import Rows, RowsView, narrowed
from vlmrl.data.joined.ratings import MANIFEST
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Frame

__all__ = ["DEMO", "Demonstration", "read_demonstrations", "with_demonstrations"]

DEMO = "__demonstration__"
"""Key of a row under which its demonstration is, a `Demo`."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What is kept of the completions of row `row` of a whole split; without `text`, why nothing is."""

    source: str
    split: str
    row: int
    id: str | None
    """The row's id, or its sample's where the row has none; None if there is no sample."""
    text: str | None = None
    """The best completion that passed, whole."""
    thought: str = ""
    reward: float | None = None
    """Its reward by the verifiers of its source."""
    passed: int = 0
    """Completions that passed, of those that were asked for."""
    frame: Frame | None = None
    """Where its places are; None: the answer has none."""
    dropped: str = ""
    """Why nothing is kept."""

    @property
    def demo(self) -> Demo:
        """Return it as the demonstration of a sample."""
        return Demo(thought=self.thought, completion=self.text, frame=self.frame)


_LINE = TypeAdapter(Demonstration)


def read_demonstrations(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, Demonstration]]]:
    """Return the manifest of a file, and its demonstrations with the numbers of their lines.

    A last line without its newline (a killed process) is left out.

    Raises:
        UserError: the file cannot be read, or a line is none of it; names it. Those of the lines come
            while they are read.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    whole = [line for line in lines if line.endswith(b"\n")]
    try:
        manifest = json.loads(whole[0])[MANIFEST]
        known = manifest["written_by"] == "vlmrl data demonstrate"
    except (IndexError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UserError(f"{path}:1: expected the manifest that `vlmrl data demonstrate` writes")
    return manifest, (
        (number, _read(path, number, line)) for number, line in enumerate(whole[1:], start=2)
    )


def with_demonstrations(
    rows: RowsView, path: Path, manifested: Mapping[str, Any]
) -> tuple[RowsView, str]:
    """Return the rows of which a demonstration is kept, with it under `DEMO`, and a short digest of these.

    `manifested` is what the manifest says of the source: name, card, options and split.

    Raises:
        UserError: the file is of other data, or has no line for one of the rows; names file and row.
    """
    manifest, lines = read_demonstrations(path)
    if {**manifested, "rows": len(rows.whole)} not in manifest["sources"]:
        raise UserError(
            f"{path}: expected demonstrations of {manifested['name']}:{manifested['split']} with the same "
            f"card, options and {len(rows.whole)} rows: it was made of other data"
        )
    found: dict[int, Demonstration] = {}
    digest = 0
    for line, one in lines:
        if (one.source, one.split) != (manifested["name"], manifested["split"]):
            continue
        if not 0 <= one.row < len(rows.whole) or one.row in found:
            raise UserError(f"{path}:{line}: row {one.row} is there twice, or does not exist")
        found[one.row] = one
        digest = zlib.crc32(repr(one).encode("utf-8", "surrogatepass"), digest)
    _check(path, rows, found)
    kept = [place for place in rows.positions if found[place].text is not None]
    return RowsView(_Demonstrated(rows.whole, found), kept), f"{digest:08x}"


class _Demonstrated(Sequence[Mapping[str, Any]]):
    """All rows of a split, those of which a demonstration is kept with it."""

    def __init__(self, rows: Rows, found: Mapping[int, Demonstration]) -> None:
        self._rows, self._found = rows, found

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        known = self._found.get(index)
        return row if known is None or known.text is None else {**row, DEMO: known.demo}

    def narrowed(self, columns: Sequence[str]) -> Rows:
        """Return the same rows with these columns alone, and all demonstrations."""
        return _Demonstrated(narrowed(self._rows, columns), self._found)


def _check(path: Path, rows: RowsView, found: Mapping[int, Demonstration]) -> None:
    ids = narrowed(rows.whole, ["id"])
    for place in rows.positions:
        if place not in found:
            raise UserError(
                f"{path}: expected a line for row {place}, got none; `vlmrl data demonstrate --resume` "
                "goes on with it"
            )
        try:
            own = ids[place].get("id")
        except UserError:
            continue
        if own is not None and found[place].id not in (None, str(own)):
            raise UserError(
                f"{path}: names row {place} {found[place].id!r}, but its id is {str(own)!r}: it was made "
                "of other data"
            )


def _read(path: Path, number: int, line: bytes) -> Demonstration:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        said = line[:80].decode("utf-8", "replace").strip()
        raise UserError(f"{path}:{number}: expected a demonstration, got {said}") from error
