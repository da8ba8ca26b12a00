"""Demonstrations that a teacher wrote and the run's verifiers passed: what `vlmrl data demonstrate` writes.

A file is JSON lines: the manifest of how it came about, then a line for each row of the sources, with the
best completion that passed, or with the reason why none is kept. A row is named by its place in its whole
split.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vlmrl.data.card import Card
from vlmrl.data.files.rows import DEMO, Rows, RowsView, narrowed
from vlmrl.errors import UserError, about_row
from vlmrl.schema import Box, Demo, Frame, Sample, Truth
from vlmrl.truths import prompting

# --------------------------------------------------------------------------------------------------
# Demonstrations made from the truth, for the cold start, and the text a small tokenizer needs.


_ROWS = ("top", "", "bottom")
_COLUMNS = ("left", "", "right")
CORPUS_ROWS = 2000
TINY = Frame(9, 9)
"""A frame in which coordinates have one digit."""


def demonstration(
    truth: Truth, steps: Sequence[float], rng: random.Random, grid: int = 0
) -> Demo | None:
    """Write a right answer, every box loosened by `steps`; None for a truth we cannot write out.

    With a `grid` the boxes grow to the lines of a grid of that many cells across and down.

    The thought is the cell of the image in which the one box lies, else empty.
    """
    if truth.boxes is None:
        return Demo(answer=truth) if prompting.can_write(truth) else None
    loose = tuple(loosened(box, steps, rng) for box in truth.boxes)
    if grid:
        loose = tuple(_snapped(box, grid) for box in loose)
    thought = cell_name(truth.boxes[0]) if len(loose) == 1 else ""
    return Demo(thought, answer=replace(truth, boxes=loose))


def cell_name(box: Box) -> str:
    """Name the cell of a 3 x 3 grid that holds the box's centre: "top left", "top", ... "center" ..."""
    column = min(2, int(3 * (box.x1 + box.x2) / 2))
    row = min(2, int(3 * (box.y1 + box.y2) / 2))
    return f"{_ROWS[row]} {_COLUMNS[column]}".strip() or "center"


def loosened(box: Box, steps: Sequence[float], rng: random.Random) -> Box:
    """Push each side of the box outwards by a random one of `steps` (unit square), clipped.

    A model that only imitates such boxes stays inexact; a reward on the exact box leads past it.
    """
    x1, y1, x2, y2 = box.xyxy
    return Box(
        max(0.0, x1 - rng.choice(steps)),
        max(0.0, y1 - rng.choice(steps)),
        min(1.0, x2 + rng.choice(steps)),
        min(1.0, y2 + rng.choice(steps)),
        box.label,
    )


def _snapped(box: Box, grid: int) -> Box:
    """Grow the box to the next lines of the grid; a rounding error over a line does not count."""
    x1, y1 = (math.floor(v * grid + 1e-9) / grid for v in (box.x1, box.y1))
    x2, y2 = (math.ceil(v * grid - 1e-9) / grid for v in (box.x2, box.y2))
    return Box(x1, y1, x2, y2, box.label)


def corpus(
    card: Card, rows: Sequence[Mapping[str, object]], frame: Frame | None = None
) -> list[str]:
    """Questions and written demonstrations of the first rows, and the whole numbers up to 1000.

    `frame`: the image's, where all have the same; else coordinates are left to the list of
    numbers, in which small ones come first because small models see small images.
    """
    texts: list[str] = []
    for index in range(min(len(rows), CORPUS_ROWS)):
        try:
            with about_row(f"row {index}"):
                own = _texts(card.to_sample(rows[index], "corpus"), frame or TINY)
                "".join(own).encode()  # a lone surrogate is no text
        except UserError:  # the loader reports and counts it
            continue
        texts += own
    return texts if frame else texts + [f"{number}, " for number in range(1001)]


def _texts(sample: Sample, frame: Frame) -> list[str]:
    texts = [sample.conversation]
    if sample.demo is not None:
        texts += [prompting.write_call(turn, frame) for turn in sample.demo.turns]
        if sample.demo.text is not None or sample.demo.answer is not None:
            texts.append(prompting.demonstrate(sample.demo, sample.template, frame))
    return texts


# --------------------------------------------------------------------------------------------------


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
    from vlmrl.data.ratings import MANIFEST, whole_lines

    lines = whole_lines(path)
    try:
        manifest = json.loads(next(lines)[1])[MANIFEST]
        known = manifest["written_by"] == "vlmrl data demonstrate"
    except (StopIteration, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UserError(f"{path}:1: expected the manifest that `vlmrl data demonstrate` writes")
    return manifest, ((number, _read(path, number, line)) for number, line in lines)


def with_demonstrations(
    rows: RowsView, path: Path, manifested: Mapping[str, object]
) -> tuple[RowsView, str]:
    """Return the rows that have a kept demonstration (under `DEMO`), and a short digest of these.

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
    by_row: dict[int, Demonstration] = {}
    digest = 0
    for line, entry in lines:
        if (entry.source, entry.split) != (manifested["name"], manifested["split"]):
            continue
        if not 0 <= entry.row < len(rows.whole) or entry.row in by_row:
            raise UserError(f"{path}:{line}: row {entry.row} is there twice, or does not exist")
        by_row[entry.row] = entry
        digest = zlib.crc32(repr(entry).encode("utf-8", "surrogatepass"), digest)
    _check(path, rows, by_row)
    kept = [row for row in rows.positions if by_row[row].text is not None]
    return RowsView(_Demonstrated(rows.whole, by_row), kept), f"{digest:08x}"


class _Demonstrated(Sequence[Mapping[str, Any]]):
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


def _check(path: Path, rows: RowsView, by_row: Mapping[int, Demonstration]) -> None:
    ids = narrowed(rows.whole, ["id"])
    for row in rows.positions:
        if row not in by_row:
            raise UserError(
                f"{path}: expected a line for row {row}, got none; `vlmrl data demonstrate --resume` "
                "goes on with it"
            )
        try:
            own = ids[row].get("id")
        except UserError:
            continue
        if own is not None and by_row[row].id not in (None, str(own)):
            raise UserError(
                f"{path}: names row {row} {by_row[row].id!r}, but its id is {str(own)!r}: it was made "
                "of other data"
            )


def _read(path: Path, number: int, line: bytes) -> Demonstration:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        excerpt = line[:80].decode("utf-8", "replace").strip()
        raise UserError(f"{path}:{number}: expected a demonstration, got {excerpt}") from error
