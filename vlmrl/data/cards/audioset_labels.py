"""What cards of sound events share: names of classes, and the names that a question offers."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from vlmrl.errors import UserError

__all__ = ["class_names", "named", "offer", "read_table"]


def read_table(path: Path, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """Read the lines of a CSV or TSV file that hold cells and no comment (`#`), with their numbers.

    Raises:
        UserError: it cannot be read.
    """
    mark = '"' if delimiter == "," else None  # a TSV file quotes nothing
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, delimiter=delimiter, quotechar=mark, skipinitialspace=True)
            return [(table.line_num, row) for row in table if row and not row[0].startswith("#")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: {error}") from error


def class_names(path: Path) -> dict[str, str]:
    """Machine id -> name, of `class_labels_indices.csv` or `mid_to_display_name.tsv` of AudioSet.

    Commas in a name become ` / `, since answers list names between commas.

    Raises:
        UserError: it cannot be read, or a line has not 3 (.csv: index,mid,display_name) or 2 cells.
    """
    comma = path.suffix == ".csv"
    wanted = 3 if comma else 2
    found = {}
    for number, row in read_table(path, "," if comma else "\t"):
        if len(row) != wanted:
            raise UserError(f"{path}:{number}: expected {wanted} cells, got {row!r:.60}")
        if row[-2] != "mid":  # the heading
            found[row[-2]] = " / ".join(part.strip() for part in row[-1].split(","))
    return found


def named(mids: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Return the names of machine ids, each once.

    Raises:
        UserError: one is unknown.
    """
    mids = list(dict.fromkeys(mids))
    for mid in mids:
        if mid not in names:
            raise UserError(f"label {mid!r:.40} is not among the {len(names)} classes")
    return [names[mid] for mid in mids]


def offer(right: Iterable[str], names: Mapping[str, str], count: int, rng: random.Random) -> str:
    """`count` names for a question, by the alphabet, separated by semicolons: right ones and others.

    At least half of them are wrong, however many are right; 0: none are offered.
    """
    if not count:
        return ""
    right = list(right)
    others = sorted(set(names.values()) - set(right))
    drawn = rng.sample(others, min(len(others), max(count - len(right), len(right))))
    return "; ".join(sorted([*right, *drawn]))
