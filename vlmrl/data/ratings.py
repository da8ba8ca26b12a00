"""Ratings: how often a policy solves each row, which `vlmrl data rate` writes for `ratings` of a source.

A file is JSON lines: the manifest of how it came about, then a line for each row. A row is named by its
place in its whole split, so a source may be cut, limited or filtered anew without being rated again.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.data.files.rows import WHERE, Rows, RowsView, narrowed
from vlmrl.errors import UserError

COLUMNS = ("pass_rate", "reward", "n")
"""Columns that a rated row has: share of completions that pass, mean reward, completions counted."""
MANIFEST = "manifest"
"""Key of a file's first line."""


@dataclass(frozen=True, slots=True)
class Rating:
    """How `n` completions of row number `row` of a whole split fared; with a `fault` there are no numbers."""

    source: str
    split: str
    row: int
    id: str | None
    """The row's id, or its sample's where the row has none; None if there is no sample."""
    pass_rate: float | None
    reward: float | None
    n: int
    fault: str = ""


def read_ratings(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, Rating]]]:
    """Return the manifest of a file, and its ratings with the numbers of their lines.

    A last line without its newline (a killed process) is left out.

    Raises:
        UserError: the file cannot be read, or a line is no rating; names it. Those of the ratings come
            while they are read.
    """
    lines = whole_lines(path)
    try:
        first = json.loads(next(lines)[1])
        manifest = first[MANIFEST]
        known = isinstance(manifest, dict) and isinstance(manifest["sources"], list)
    except (StopIteration, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UserError(f"{path}:1: expected the manifest that `vlmrl data rate` writes")
    return manifest, ((number, _read(path, number, line)) for number, line in lines)


def with_ratings(
    rows: RowsView, path: Path, manifested: Mapping[str, object]
) -> tuple[RowsView, str]:
    """Return rows with the columns of their ratings, and a short digest of these.

    `manifested` is what a manifest would say of the source: name, card, options and split. It is found
    by card, options and split, else by its name, and then every row must have its id in the file. A row
    that could not be rated cannot be read: it is refused by name and counted when it is drawn.

    Raises:
        UserError: the ratings are of other data, or one of the rows has none; names file and row.
    """
    manifest, lines = read_ratings(path)
    entry, same = _entry(path, manifest["sources"], manifested)
    if entry["rows"] != len(rows.whole):
        raise UserError(
            f"{path}: rates split {entry['split']!r} of {entry['rows']} rows, got {len(rows.whole)}: "
            "rate these data again"
        )
    ratings: dict[int, tuple[int, Rating]] = {}
    digest = 0
    for line, rating in lines:
        if (rating.source, rating.split) != (entry["name"], entry["split"]):
            continue
        if not 0 <= rating.row < len(rows.whole) or rating.row in ratings:
            was = "is rated twice" if rating.row in ratings else "does not exist"
            raise UserError(f"{path}:{line}: row {rating.row} of {rating.split!r} {was}")
        ratings[rating.row] = line, rating
        digest = zlib.crc32(repr(rating).encode("utf-8", "surrogatepass"), digest)
    _check(path, rows, ratings, must_have_id=not same)
    return rows.over(_RatedRows(rows.whole, path, ratings)), f"{digest:08x}"


class _RatedRows(Sequence[Mapping[str, Any]]):
    def __init__(self, rows: Rows, path: Path, ratings: Mapping[int, tuple[int, Rating]]) -> None:
        self._rows, self._path, self._ratings = rows, path, ratings
        self._numbers = np.full((len(rows), len(COLUMNS)), np.nan)
        for row, (_, rating) in ratings.items():
            if not rating.fault:
                self._numbers[row] = [getattr(rating, column) for column in COLUMNS]
        self._faults = {row: rating.fault for row, (_, rating) in ratings.items() if rating.fault}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        where = row.get(WHERE, f"row {index}")
        if reason := self._faults.get(index):
            raise UserError(f"{where}: {self._path} has no rating of it: {reason}")
        for column in COLUMNS:
            if column in row:
                raise UserError(
                    f"{where}: column {column!r} would be overwritten by {self._path}: rename it"
                )
        pass_rate, reward, count = self._numbers[index].tolist()
        return {**row, "pass_rate": pass_rate, "reward": reward, "n": int(count)}

    def narrowed(self, columns: Sequence[str]) -> Rows:
        """Return the same rows with these columns alone, and all of the ratings."""
        other = object.__new__(_RatedRows)
        other.__dict__.update(self.__dict__)
        own = [column for column in columns if column not in COLUMNS]
        other._rows = narrowed(self._rows, [*own, *COLUMNS])
        return other


def _check(
    path: Path, rows: RowsView, ratings: Mapping[int, tuple[int, Rating]], must_have_id: bool
) -> None:
    """Refuse ratings that lack one of the rows, or are of rows with other ids."""
    ids = narrowed(rows.whole, ["id"])
    for position in rows.positions:
        if position not in ratings:
            raise UserError(
                f"{path}: expected a rating of row {position}, got none; `vlmrl data rate --resume` "
                "goes on with it"
            )
        line, rating = ratings[position]
        try:
            own = ids[position].get("id")
        except UserError:
            continue
        if own is None and must_have_id:
            raise UserError(
                f"{path}: was made of other data, and row {position} has no id by which to find it: "
                "rate these data"
            )
        if own is not None and rating.id is not None and str(own) != rating.id:
            raise UserError(
                f"{path}:{line}: rates row {position} as {rating.id!r}, whose id is {str(own)!r}: it "
                "was made of other data"
            )


def _entry(
    path: Path, entries: Sequence[Mapping[str, object]], wanted: Mapping[str, object]
) -> tuple[Mapping[str, Any], bool]:
    """Return the source of a manifest that is meant, and whether it is of the same card and options."""
    of_split = [e for e in entries if isinstance(e, dict) and e.get("split") == wanted["split"]]
    for keys in (("card", "options"), ("name",)):
        for entry in of_split:
            sound = isinstance(entry.get("rows"), int) and isinstance(entry.get("name"), str)
            if sound and all(entry.get(key) == wanted[key] for key in keys):
                return entry, "card" in keys
    known = ", ".join(f"{e.get('name')}:{e.get('split')}" for e in entries if isinstance(e, dict))
    raise UserError(
        f"{path}: expected ratings of {wanted['name']}:{wanted['split']}, got those of {known or 'none'}"
    )


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that end in a newline, with their numbers.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _read(path: Path, number: int, line: bytes) -> Rating:
    try:
        rating = Rating(**json.loads(line))
        sound = _is_sound(rating)
    except (ValueError, TypeError):
        sound = False
    if not sound:
        keys = ", ".join(field.name for field in fields(Rating))
        excerpt = line[:80].decode("utf-8", "replace").strip()
        raise UserError(f"{path}:{number}: expected a rating ({keys}), got {excerpt}")
    return rating


def _is_sound(rating: Rating) -> bool:
    named = isinstance(rating.source, str) and isinstance(rating.split, str)
    numbered = type(rating.row) is int and type(rating.n) is int
    if not (named and numbered and isinstance(rating.fault, str)):
        return False
    if rating.fault:
        return rating.pass_rate is None and rating.reward is None
    numbers = [rating.pass_rate, rating.reward]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):  # type: ignore[arg-type]
        return False
    return 0 <= rating.pass_rate <= 1 <= rating.n  # type: ignore[operator]
