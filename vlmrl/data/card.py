"""The contract of a card: one file under `datasets/` that says what a data set is and reads it.

A card is a frozen dataclass; its fields are its options in the config. Reading is lazy:
`rows(split)` must be cheap, and `to_sample(row)` makes one sample without decoding any media.

`vlmrl.data.files` opens data files with the place of each row. Helpers of cards, next to this file:
`typed_rows` makes samples of rows under our keys; `row_forms` names columns as published and reads the
turns before a question and a row's own verifiers; `multiple_choice` reads options; `annotations` finds
boxes stated in another space, finds video files, checks spans, and knows the classes of AudioSet;
`demonstrations` writes answers for a cold start. `vlmrl.media.access.reference` makes a `Media` of a
path or bytes, and `vlmrl.truths.json_form.read` a `Truth` of its JSON form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data.files.rows import RowsView
from vlmrl.errors import UserError, about_row
from vlmrl.schema import Sample
from vlmrl.system.seeds import uniform


@dataclass(frozen=True)
class Card:
    """Base of cards.

    Class variables: `origin` (where the data comes from), `revision`, `licence`, `splits`,
    `media` (what its prompts hold, of image, video and audio; empty: what its rows have),
    `verifiers` (what fits this data).
    """

    origin: ClassVar[str] = ""
    revision: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")
    media: ClassVar[tuple[str, ...]] = ()
    verifiers: ClassVar[tuple[str, ...]] = ()

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Open the rows of a split: indexable, with a length, lazy where the format allows.

        Raises:
            UserError: no such split or file; the message names it.
        """
        raise TypeError(f"{type(self).__name__} must define rows")

    def to_sample(self, row: Mapping[str, object], source: str) -> Sample:
        """One row as a sample: truth in the unit square and in seconds.

        Raises:
            UserError: what is wrong with this row; the loader quarantines it under this reason.
        """
        raise TypeError(f"{type(self).__name__} must define to_sample")

    def media_root(self) -> str | None:
        """Return the folder that media paths must stay inside, unless `data.media_root` names another."""
        return None

    def group(self, row: Mapping[str, object]) -> str | None:
        """Rows of one group stay on one side of a split `train[:80%]`; None: each for itself."""
        return None

    def corpus(self) -> list[str]:
        """Text on which a small model's tokenizer is trained (questions and demonstrations)."""
        return []

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits that the data have, as far as that is known without reading them: `splits`."""
        return self.splits

    def fitting_verifiers(self) -> tuple[str, ...]:
        """Return the names of verifiers that fit these data: `verifiers`, or what the options make of it."""
        return self.verifiers

    def describe(self) -> str:
        """Return what the data are taken for and why, on one line; empty: the card's name says it."""
        return ""

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write a few rows in the published layout into a folder; return the options that read them.

        For the contract test. A card without required options that makes its own rows needs none.
        """
        return {}


# --------------------------------------------------------------------------------------------------
# The rows of a card's split, whole or cut.
#
# `train[:100]` takes rows by position; `train[:80%]` and `train[80%:]` divide by a hash of the row's
# group (its image, where the card knows one), so that the questions about one image never stand on both
# sides, and the parts stay the same when rows are added.


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
    positions = []
    for position in range(len(rows)):
        try:
            with about_row(f"row {position}"):
                group = card.group(rows[position])
        except UserError:  # a bad row is reported when it is loaded, not here
            group = None
        if low <= uniform(f"row {position}" if group is None else group) < high:
            positions.append(position)
    return RowsView(rows, positions)
