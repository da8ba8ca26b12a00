"""The rows of a card's split, whole or cut.

`train[:100]` takes rows by position; `train[:80%]` and `train[80%:]` divide by a hash of the row's
group (its image, where the card knows one), so that the questions about one image never stand on both
sides, and the parts stay the same when rows are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmrl.data.cards.card import Card
from vlmrl.data.files.rows import RowsView
from vlmrl.errors import UserError
from vlmrl.system.seeds import uniform

__all__ = ["read_split", "select"]

_SPLIT = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<start>\d*%?):(?P<stop>\d*%?)\])?")


def read_split(split: str) -> re.Match[str]:
    """Return the name of a split and where it is cut, as the groups of a match.

    Raises:
        UserError: it is not written like a split, or the cut leaves no row.
    """
    match = _SPLIT.fullmatch(split)
    if match is None:
        raise UserError(f"split {split!r}: write a name, name[start:stop] or name[start%:stop%]")
    start, stop = match["start"] or "", match["stop"] or ""
    alike = not (start and stop) or start.endswith("%") == stop.endswith("%")
    end = stop or ("100%" if start.endswith("%") else "")
    if alike and end and int(start.rstrip("%") or 0) >= int(end.rstrip("%")):
        raise UserError(f"split {split!r}: expected start < stop, got no row")
    return match


def select(card: Card, split: str) -> RowsView:
    """Return the rows of a split: whole (`train`), by position (`train[10:20]`), by hash (`train[:80%]`).

    Raises:
        UserError: the split is not written like this, or the card does not have it.
    """
    match = read_split(split)
    rows = card.rows(match["name"])
    start, stop = match["start"] or "", match["stop"] or ""
    if "%" not in start + stop:
        cut = slice(int(start) if start else None, int(stop) if stop else None)
        return RowsView(rows, range(len(rows))[cut])
    if any(bound and not bound.endswith("%") for bound in (start, stop)):
        raise UserError(f"split {split!r}: give both bounds in percent, or neither")
    low = int(start.rstrip("%") or 0) / 100
    high = int(stop.rstrip("%") or 100) / 100
    return RowsView(rows, [i for i, x in enumerate(_shares(card, rows)) if low <= x < high])


def _shares(card: Card, rows: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield a number in [0, 1) for each row, the same for all rows of a group."""
    for position in range(len(rows)):
        try:
            group = card.group(rows[position])
        except UserError:  # a bad row is reported when it is loaded, not here
            group = None
        key = f"row {position}" if group is None else group
        yield uniform(key)
