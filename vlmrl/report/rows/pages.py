"""The pages of a run's rows in `vlmrl watch`: the list of those that match, and each row's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.pages.render import render
from vlmrl.report.page import HERE
from vlmrl.report.rows.row_filter import PARTS, REWARD, RowFacts, RowFilter, encode
from vlmrl.report.rows.row_index import RowIndex
from vlmrl.report.rows.selection import as_command
from vlmrl.report.rows.story import row_address, run_address, tell
from vlmrl.report.rows.token_heat import DIFFERENCES, PROBABILITIES

__all__ = ["ROW_SCRIPTS", "list_page", "row_page"]

ROW_SCRIPTS = ("report.js", "rows/row.js")
PAGE_ROWS = 100
"""Rows on one page of the list."""


def list_page(index: RowIndex, config: Mapping[str, Any], wanted: RowFilter, skip: int) -> str:
    """Return the page of the rows that match, the newest first, without the first `skip`."""
    base, found = _base(index), index.chosen(wanted)
    newest_first = found[::-1][skip : skip + PAGE_ROWS]
    sources, verifiers = index.names()
    query = wanted.query()

    def at(start: int) -> str:
        return f"{base}/rows?{encode({**query, 'skip': start})}"

    return render(
        HERE,
        "rows/rows.html",
        *ROW_SCRIPTS,
        **_common(index, config, base, at(skip)),
        wanted=wanted,
        parts=PARTS,
        sources=sources,
        verifiers=verifiers,
        count=len(found),
        rows=[_line(base, row, wanted) for row in newest_first],
        newer=at(max(0, skip - PAGE_ROWS)) if skip else "",
        older=at(skip + PAGE_ROWS) if skip + PAGE_ROWS < len(found) else "",
        attacks=f"{base}/rows.jsonl?{encode(query)}",
        data=f"{base}/rows.zip?{encode(query)}",
        command=as_command(index.folder, wanted),
    )


def row_page(index: RowIndex, config: Mapping[str, Any], facts: RowFacts, wanted: RowFilter) -> str:
    """Return the page of one row.

    Raises:
        UserError: the row cannot be read.
    """
    base = _base(index)
    story, album = tell(index, facts, wanted, config, base)
    return render(
        HERE,
        "rows/row.html",
        *ROW_SCRIPTS,
        **_common(index, config, base, row_address(base, facts, wanted)),
        story=story,
        images=album.images.values(),
        list_address=f"{base}/rows?{encode(wanted.query())}",
        filter_said=", ".join(f"{key} {value}" for key, value in wanted.query().items()),
        count=len(index.chosen(wanted)),
        differences=DIFFERENCES,
        probabilities=PROBABILITIES,
    )


def _base(index: RowIndex) -> str:
    return run_address(index.folder.absolute().name)


def _common(index: RowIndex, config: Mapping[str, Any], base: str, here: str) -> dict[str, Any]:
    return {
        "title": config["run"]["name"],
        "base": base,
        "here": here,
        "whole": index.is_whole,
        "read": index.read,
        "total": index.total,
        "damaged": index.damaged,
    }


def _line(base: str, row: RowFacts, wanted: RowFilter) -> dict[str, Any]:
    return {
        "step": row.step,
        "source": row.source,
        "id": row.id,
        "address": row_address(base, row, wanted),
        "mean": row.mean_reward,
        "rewards": row.scores[REWARD],
        "failed": sum(row.failed),
    }
