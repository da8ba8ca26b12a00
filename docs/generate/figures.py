"""Published figures: `{{record/figure}}` becomes its number, `{{record/figure []}}` with its interval.

The numbers are in `performance/results/*.yaml` alone, so that page and record cannot differ. On the page of
results a number that is written out is an error: it has no record.
"""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import figure_commands
import tables

from vlmrl.commands.reproduction.records import Figure, Record, read_records
from vlmrl.errors import UserError

ROOT = Path(__file__).parents[2]
PAGE = "understand/results.md"
"""The page on which every figure has a record."""
MARK = re.compile(r"\{\{\s*([\w.-]+)/([\w.-]+)( \[\])?\s*\}\}")
CODE = re.compile(r"(^```.*?^```$|`[^`]*`)", re.M | re.S)
NO_FIGURE = re.compile(r"^```.*?^```$|`[^`]*`|<!--.*?-->|\]\([^)]*\)|\{\{.*?\}\}|95 %", re.M | re.S)
"""What may hold numbers that nobody measured: code (settings), comments, links; the level of intervals."""
WRITTEN_OUT = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\d+(?:\.\d+)?(?= ?%)|\d+e-?\d+)(?![\w]|\.\d)")


@functools.cache
def records() -> dict[str, Record]:
    """Return all records by name."""
    return read_records(ROOT)


def fill(markdown: str) -> str:
    """Return a page with the marks outside of code replaced by the numbers of the records.

    Raises:
        UserError: a mark whose record or figure is not there.
    """
    return "".join(
        piece if i % 2 else MARK.sub(_show_match, piece)
        for i, piece in enumerate(CODE.split(markdown))
    )


def _show_match(match: re.Match[str]) -> str:
    return _show(match[1], match[2], bool(match[3]))


def _show(record: str, name: str, with_interval: bool) -> str:
    figure = records()[record].figures.get(name) if record in records() else None
    if figure is None:
        raise UserError(f"no record in performance/results/*.yaml has a figure {record}/{name}")
    if not with_interval:
        return _text(figure, figure.expected)
    if figure.interval is None:
        raise UserError(f"{record}/{name} has no interval to show")
    low, high = (_text(figure, end) for end in figure.interval)
    return f"{_text(figure, figure.expected)} [{low}, {high}]"


def _text(figure: Figure, value: float) -> str:
    return f"{value:.{figure.digits}f}"


def written_out(markdown: str) -> list[str]:
    """Return the numbers of the page of results that are no marks, settings in code or links."""
    return [match[0] for match in WRITTEN_OUT.finditer(NO_FIGURE.sub(" ", markdown))]


def check() -> list[str]:
    """Return what is wrong with the records, their commands and the page of results."""
    page = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    try:
        fill(page)
    except UserError as error:
        return [str(error)]
    found = [f"{PAGE}: {number} has no record; write it as a mark" for number in written_out(page)]
    return found + figure_commands.problems(records())


def count() -> str:
    """Return how many figures have a command and how many have none."""
    by_hand = sum(len(record.figures) for record in records().values() if record.by_hand)
    whole = sum(len(record.figures) for record in records().values())
    return f"published figures: {whole - by_hand} with a command, {by_hand} measured once, by hand"


def table() -> str:
    """Return the table of commands, and below it that of the figures without one."""
    lines = [
        *tables.header("record", "what", "command", "CPU min", "needs", "measured", "repeated")
    ]
    rest = ["", *tables.header("record without a command", "what", "figures", "why", "measured")]
    for name, record in records().items():
        head, measured = (tables.code(name), record.says), f"{record.date}, {record.hardware}"
        if record.by_hand:
            measured = f"{record.date}, commit {tables.code(record.commit)}"
            rest.append(tables.row(*head, str(len(record.figures)), record.by_hand, measured))
            continue
        command, needs = tables.code(shlex.join(record.command)), ", ".join(record.needs)
        again = str(record.repeated or "")
        lines.append(tables.row(*head, command, f"{record.minutes:g}", needs, measured, again))
    return "\n".join([*lines, *rest])
