"""Read the value of a figure from what its command left: a JSON file, the curves of a run, or its output."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlmrl.commands.reproduction.records import OUTPUT
from vlmrl.errors import UserError

__all__ = ["read_value"]

NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")


def read_value(folder: Path, output: str, where: Sequence[str]) -> float:
    """Return the number at a place, as `PublishedFigure.read` describes it.

    Raises:
        UserError: the file, key, text, row or column is not there, is there twice, or is no number.
    """
    file, *keys = where
    if file == OUTPUT:
        return _read_cell(output, *keys) if len(keys) == 2 else _read_after(output, keys[0])
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UserError(f"{file}: expected a file in the command's own folder")
    if not path.is_file():
        raise UserError(f"the command wrote no {file}")
    if path.suffix == ".jsonl":
        return _read_mean(path, *keys)
    value: Any = json.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise UserError(f"{file}: expected keys {' > '.join(keys)}, got no {key!r}")
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{file}: expected a number at {' > '.join(keys)}, got {value!r}")
    return float(value)


def _read_mean(path: Path, name: str, steps: str) -> float:
    """Return the mean of a metric over the steps of a run, both ends included."""
    first, last = map(int, steps.split("-"))
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    values = [line.get(name) for line in lines if first <= line["step"] <= last]
    if len(values) != last - first + 1 or None in values:
        raise UserError(f"{path.name}: expected {name} at each of steps {steps}")
    return statistics.fmean(values)


def _read_after(output: str, text: str) -> float:
    """Return the first number after a text that was printed once."""
    _, found, rest = output.partition(text)
    if not found or text in rest:
        raise UserError(f"expected {text!r} once in the output, got it {output.count(text)} times")
    return _number(rest.splitlines()[0] if rest else "", text)


def _read_cell(output: str, row: str, column: str) -> float:
    """Return the number in a Markdown table whose row begins with the cells `row`."""
    start = [cell.strip() for cell in row.split("|")]
    found = [
        cells[titles.index(column)]
        for titles, cells in _rows(output)
        if column in titles and cells[: len(start)] == start
    ]
    if len(found) != 1:
        raise UserError(f"expected one row {row!r} with a column {column!r}, got {len(found)}")
    return _number(found[0], f"{row}, {column}")


def _rows(output: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the titles and the cells of each row of the tables in a text."""
    titles: list[str] = []
    lines = output.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            titles = []
        elif re.fullmatch(r"\|[-:| ]+\|", below):
            titles = _cells(line)
        elif titles and not re.fullmatch(r"\|[-:| ]+\|", line):
            yield titles, _cells(line)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _number(text: str, where: str) -> float:
    match = NUMBER.search(text)
    if match is None:
        raise UserError(f"expected a number at {where!r}, got {text.strip()!r}")
    return float(match[0].replace(",", ""))
