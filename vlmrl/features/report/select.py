"""Select stored rows of a run: what `vlmrl data select` calls."""

from __future__ import annotations

import math
from pathlib import Path

from vlmrl.assemble.trained_run import read_config
from vlmrl.config import Config
from vlmrl.data.source import access_to
from vlmrl.errors import MediaError, UserError
from vlmrl.features.report.rows import (
    Originals,
    RowFilter,
    RowIndex,
    attack_lines,
    read_range,
    write_data_set,
)
from vlmrl.media.access import Access, locate
from vlmrl.plugins import nearest
from vlmrl.schema import Media, MediaKind
from vlmrl.system.files import write_lines


def select(
    run: Path,
    out: Path,
    *,
    attacks: bool,
    part: str,
    source: str,
    steps: str | None,
    verifier: str,
    score: str | None,
    spread: float | None,
    failed: bool,
    ids: tuple[str, ...],
) -> str:
    """Write the rows of a run that fit to `out`; return a line about it.

    Raises:
        UserError: `run` is no run folder, no row fits, or one of them cannot be written.
    """
    config = read_config(run)
    first, last = read_range(steps, "--steps") if steps is not None else (None, None)
    least, most = read_range(score, "--score") if score is not None else (None, None)
    wanted = RowFilter(
        part=part,
        only=source,
        first=None if first is None else math.ceil(first),
        last=None if last is None else math.floor(last),
        by=verifier,
        least=least,
        most=most,
        spread=spread,
        failed=failed,
        ids=ids,
    )
    index = RowIndex(run)
    index.refresh()
    sources, verifiers = index.names()
    for option, name, known in (
        ("--source", source, sources),
        ("--verifier", verifier, verifiers),
    ):
        if name and name not in known:
            raise UserError(f"{option}: the run's rows have no {name!r}{nearest(name, known)}")
    there = sorted({row.id for row in index.rows if row.part == part})
    for name in ids:
        if name not in there:
            raise UserError(f"--row: {part}/ has no row {name!r}{nearest(name, there)}")
    rows = index.chosen(wanted)
    if not rows:
        raise UserError(f"{run}: none of the rows in {part}/ fits")
    if attacks:
        lines = list(attack_lines(index, wanted))
        write_lines(out, lines)
        count = len({(row.source, row.id) for row in rows})
        return f"{out}: {len(lines)} completions of {count} rows"
    written = write_data_set(index, rows, out, _originals_of(config))
    copies = f", {written.copies} as the run stored them" if written.copies else ""
    return f"{out}: {written.rows} rows, {written.media} media{copies}"


def _originals_of(config: Config) -> Originals:
    """Return what finds the files that a run was trained on, inside the folders that its config names."""
    accesses: dict[str, Access | None] = {}
    for source in (*config.data.train, *config.held_out):
        if source.label not in accesses:
            try:
                accesses[source.label] = access_to(source, config.data)
            except (UserError, OSError):  # its data are not on this machine
                accesses[source.label] = None

    def find(source: str, kind: MediaKind, name: str) -> Path | None:
        access = accesses.get(source)
        if access is None or access.root is None:
            return None
        try:
            return locate(Media(kind, path=name), access)
        except (MediaError, OSError, ValueError):
            return None

    return find
