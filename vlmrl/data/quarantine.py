"""Rows that cannot be used: listed in the run folder, never opened again, and limited in number."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.data.source import Source
from vlmrl.errors import MediaError, UserError, about_row, shortened
from vlmrl.schema import Prompt, Sample
from vlmrl.system import distributed
from vlmrl.system.files import append_line, read_lines, write_lines

Found = Prompt | UserError | None
"""A row's prompt, why it has none, or None if it was known to be bad."""

GRACE = 20
"""Rows that are seen before the limit can stop a run."""
KEYS, SUM = {"id", "source", "split", "row", "kind", "reason"}, "crc32"
"""What a line of the file has, and beside it the CRC-32 of that."""


class TooLong(UserError):
    """A prompt with more tokens than allowed; it is dropped, never cut."""


class Quarantine:
    """The bad rows of a run, kept in a file across resumes; without a path, in memory only.

    Of several ranks the main one writes; `take_new` and `learn` carry to it what the others found.

    `counts` has how many rows went in by kind: `row` (cannot become a sample), `media` (an image
    that cannot be read), `length` (a prompt that is too long).
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self._new: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()
        lines: list[dict[str, Any]] = []
        if path is not None and distributed.is_main() and path.exists():
            lines = _read(path)
            # Without the torn last line of a killed run.
            write_lines(path, [{**line, SUM: _sum(line)} for line in lines])
        for line in distributed.from_main(lines):
            self._note(line)

    def rows(self, source: Source) -> Set[int]:
        """Return the rows of a source that are known to be bad."""
        return self.reasons(source).keys()

    def reasons(self, source: Source) -> Mapping[int, str]:
        """Return by row of a source that is known to be bad why it is."""
        return self._known[source.name, source.split]

    def add(self, source: Source, row: int, sample_id: str | None, error: UserError) -> None:
        """Note a bad row, here and in the file. `sample_id` is None if the row has none.

        Raises:
            UserError: the file cannot be written.
        """
        kind = "media" if isinstance(error, MediaError) else "row"
        kind = "length" if isinstance(error, TooLong) else kind
        line = {
            "id": sample_id,
            "source": source.name,
            "split": source.split,
            "row": row,
            "kind": kind,
            "reason": shortened(str(error)),
        }
        self._note(line)
        self._write(line)
        if distributed.world() > 1:
            self._new.append(line)

    def take_new(self) -> list[dict[str, Any]]:
        """Return the lines that this rank has not sent to the others yet."""
        new, self._new = self._new, []
        return new

    def learn(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Note what another rank found; a row that is known already is not noted again."""
        for line in lines:
            if line["row"] not in self._known[line["source"], line["split"]]:
                self._note(line)
                self._write(line)

    def _note(self, line: Mapping[str, Any]) -> None:
        self._known[line["source"], line["split"]][line["row"]] = line["reason"]
        self.counts[line["kind"]] += 1

    def _write(self, line: Mapping[str, object]) -> None:
        if self._path is not None and distributed.is_main():
            append_line(self._path, {**line, SUM: _sum(line)})


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a quarantine without their sums; older ones had none."""
    lines = []
    try:
        for number, line in enumerate(read_lines(path), start=1):
            stated = line.pop(SUM, None)
            if line.keys() != KEYS or stated not in (None, _sum(line)):
                raise UserError(f"{path}: line {number} was changed after it was written")
            lines.append(line)
    except UserError as error:
        raise UserError(f"{error}; delete the file: the run finds its rows again") from error
    return lines


def _sum(line: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(line, sort_keys=True).encode())


@dataclass
class Tally:
    """Counts good and bad rows against a limit; `total` rows are all there are."""

    limit: float
    total: int
    seen: int = 0
    bad: int = 0
    last: str = "known from before"
    """Why the last bad row was bad."""

    def count(self, reason: str = "") -> None:
        """Count a row, which is bad if there is a reason; known bad rows count each time they are met.

        Raises:
            UserError: too many rows are bad; names the share, the limit and the last reason. A good row
                may be the last of all, or the one that ends the grace.
        """
        self.seen += 1
        if reason:
            self.bad += 1
            self.last = reason
        # Before every row was seen once the share is an estimate: it must lie two standard errors
        # above the limit, so that an unlucky order does not stop a run whose data are within it.
        allowed = self.limit * self.seen
        if self.seen < self.total:
            allowed += 2 * math.sqrt(self.limit * (1 - self.limit) * self.seen)
        if self.bad > allowed and (self.seen >= GRACE or self.seen >= self.total):
            raise UserError(
                f"{self.bad} of {self.seen} rows seen are bad, more than data.quarantine_limit "
                f"{self.limit:g} allows; the last: {self.last}"
            )


def row_id(source: Source, row: int) -> str | None:
    """Return the `id` of a row, if it can be read and has one."""
    try:
        with about_row(f"row {row}"):
            identity = source.rows[row].get("id")
            return None if identity is None else shortened(str(identity))
    except UserError:
        return None


def read_sample(source: Source, row: int, quarantine: Quarantine) -> Sample | UserError | None:
    """Return the sample of a row, why it has none, or None if that is known already."""
    if row in quarantine.rows(source):
        return None
    try:
        return source.sample(row)
    except UserError as error:
        return error


def note_bad(source: Source, row: int, found: Found, quarantine: Quarantine) -> Prompt | str:
    """Return the prompt of a row, or why there is none; note a new bad row."""
    # A bad row may have been met again before it was noted.
    if found is None or row in quarantine.rows(source):
        return f"{source.name} {source.split} row {row} (known)"
    if isinstance(found, UserError):
        quarantine.add(source, row, row_id(source, row), found)
        return quarantine.reasons(source)[row]
    return found
