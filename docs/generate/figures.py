"""Published figures: each number of the page of results stands before a mark, `0.662<!--record/figure-->`.

With ` []` in the mark its interval belongs to it: `0.662 [0.639, 0.686]<!--record/figure []-->`. The numbers
are those of `performance/results/*.yaml`: another one fails the build.
`python docs/generate/figures.py` writes them anew. On the page of results a number without a mark is an
error: it has no record.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from pathlib import Path

import figure_commands
import tables

from vlmrl.errors import UserError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "performance"))  # last: both folders have a module `tables`

from reproduce import PublishedFigure, Record, read_records  # noqa: E402

PAGE = "understand/results.md"
"""The page on which every figure has a record."""
MARK = re.compile(r"(-?\d[\d.e-]*(?: \[[^\]<]*\])?)?<!--([\w.-]+)/([\w.-]+)( \[\])?-->")
"""A number, its record and figure, and whether its interval is shown."""
CODE = re.compile(r"(^```.*?^```$|`[^`]*`)", re.M | re.S)
NO_FIGURE = re.compile(r"^```.*?^```$|`[^`]*`|<!--.*?-->|\]\([^)]*\)|95 %", re.M | re.S)
"""What may hold numbers that nobody measured: code (settings), comments, links; the level of intervals."""
WRITTEN_OUT = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\d+(?:\.\d+)?(?= ?%)|\d+e-?\d+)(?![\w]|\.\d)")


@functools.cache
def records() -> dict[str, Record]:
    """Return all records by name."""
    return read_records(ROOT)


def fill(markdown: str) -> str:
    """Return a page whose marks, outside of code, stand behind the numbers of the records.

    Raises:
        UserError: a mark whose record or figure is not there.
    """
    return "".join(
        piece if i % 2 else MARK.sub(_filled, piece) for i, piece in enumerate(CODE.split(markdown))
    )


def _filled(match: re.Match[str]) -> str:
    _, record, name, interval = match.groups(default="")
    return f"{_show(record, name, bool(interval))}<!--{record}/{name}{interval}-->"


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


def _text(figure: PublishedFigure, value: float) -> str:
    return f"{value:.{figure.digits}f}"


def differing(markdown: str) -> list[str]:
    """Return the marks that stand behind another number than their record's.

    Raises:
        UserError: a mark whose record or figure is not there.
    """
    prose = "".join(CODE.split(markdown)[::2])
    return [
        f"expected {_filled(match)}, got {match[0]}"
        for match in MARK.finditer(prose)
        if match[0] != _filled(match)
    ]


def written_out(markdown: str) -> list[str]:
    """Return the numbers of the page of results without marks, except settings in code and links."""
    prose = NO_FIGURE.sub(" ", MARK.sub(" ", markdown))
    return [match[0] for match in WRITTEN_OUT.finditer(prose)]


def check() -> list[str]:
    """Return what is wrong with the records, their commands and the pages that show their numbers."""
    page = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    found = [f"{PAGE}: {number} has no record; it needs a mark" for number in written_out(page)]
    for path in _pages():
        try:
            wrong = differing(path.read_text(encoding="utf-8"))
        except UserError as error:
            wrong = [str(error)]
        found += [f"{path.relative_to(ROOT)}: {each}" for each in wrong]
    return found + figure_commands.problems(records())


def _pages() -> list[Path]:
    return [ROOT / "docs" / PAGE, *sorted((ROOT / "performance").rglob("*.md"))]


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


if __name__ == "__main__":
    for path in _pages():
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
