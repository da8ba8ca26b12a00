"""Published figures: the tables of the page of results, written from `performance/results/*.yaml`.

`results.yaml` beside this file says which figures a table shows; `<!-- results NAME -->` on the page is its
place. The prose of the page holds no measured number: one there has no record and fails the build.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import figure_commands
import tables
import yaml

from vlmrl.errors import UserError

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "performance"))  # last: both folders have a module `tables`

from reproduce import Record, read_records  # noqa: E402

PAGE = "understand/results.md"
"""The page on which every figure has a record."""
TABLE = re.compile(r"<!-- results (\w+) -->")
"""The place of a table on a page."""
NO_FIGURE = re.compile(r"^```.*?^```$|`[^`]*`|<!--.*?-->|\]\([^)]*\)|95 %", re.M | re.S)
"""What may hold numbers that nobody measured: code (settings), comments, links; the level of intervals."""
WRITTEN_OUT = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\d+(?:\.\d+)?(?= ?%)|\d+e-?\d+)(?![\w]|\.\d)")
NOT_KNOWN = "–"
"""The cell of a figure that a record does not have."""


@functools.cache
def records() -> dict[str, Record]:
    """Return all records by name."""
    return read_records(ROOT)


@functools.cache
def result_tables() -> dict[str, dict[str, Any]]:
    """Return what `results.yaml` says of each table, by its name."""
    text = Path(__file__).with_name("results.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def fill(markdown: str) -> str:
    """Return a page with its tables in their places.

    Raises:
        UserError: a table or a record that is not there.
    """
    return TABLE.sub(lambda match: result_table(match[1]), markdown)


def result_table(name: str) -> str:
    """Return a table of results, as Markdown.

    Raises:
        UserError: no such table, or a record that is not there.
    """
    table = result_tables().get(name)
    if table is None:
        raise UserError(f"docs/generate/results.yaml has no table {name!r}")
    if "records" not in table:
        rows = [[title, _figure(*full.split("/"))] for full, title in table["figures"].items()]
        return _markdown([["", "value"], *rows])
    lines = [["", *table["figures"].values()]]
    for record, title in table["records"].items():
        lines.append([title, *(_figure(record, figure) for figure in table["figures"])])
    if table["rows"] == "figures":
        lines = [list(column) for column in zip(*lines, strict=True)]
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join([*tables.header(*lines[0]), *(tables.row(*line) for line in lines[1:])])


def _figure(record: str, name: str) -> str:
    """Return a figure with its interval, if it has one; a dash if this record does not have it."""
    if record not in records():
        raise UserError(f"no record in performance/results/*.yaml is called {record!r}")
    figure = records()[record].figures.get(name)
    if figure is None:
        return NOT_KNOWN
    value, *ends = (
        f"{number:.{figure.digits}f}" for number in (figure.expected, *(figure.interval or ()))
    )
    return f"{value} [{', '.join(ends)}]" if ends else value


def written_out(markdown: str) -> list[str]:
    """Return the numbers in the prose of the page of results, except settings in code and links."""
    return [match[0] for match in WRITTEN_OUT.finditer(NO_FIGURE.sub(" ", markdown))]


def check() -> list[str]:
    """Return what is wrong with the records, their commands and the page that shows their numbers."""
    page = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    problems = [
        f"{PAGE}: {number} has no record; show it in a table" for number in written_out(page)
    ]
    places = TABLE.findall(page)
    for name in sorted({*places, *result_tables()}):
        if places.count(name) != 1:
            problems.append(f"{PAGE}: expected one table {name!r}, got {places.count(name)}")
    problems += [f"results.yaml: no record has a figure {name}" for name in _unknown_figures()]
    return problems + figure_commands.problems(records())


def _unknown_figures() -> list[str]:
    """Return the figures of `results.yaml` that none of their table's records has."""
    return [
        f"{'|'.join(owners)}/{name}"
        for table in result_tables().values()
        for full in table["figures"]
        for owner, _, name in [full.rpartition("/")]
        for owners in [list(table.get("records", [owner]))]
        if all(name not in records()[each].figures for each in owners if each in records())
    ]


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
