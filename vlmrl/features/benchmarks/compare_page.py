"""The offline page of a comparison: intervals drawn, rows won and lost with the answers of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.features.benchmarks.comparison import Contrast, Difference
from vlmrl.features.benchmarks.tables import plain_truth
from vlmrl.pages.render import render
from vlmrl.system.files import write_bytes

WIDTH = 320
"""Of a drawn interval, in units of its SVG; 0 is in the middle."""
MAX_SHOWN = 50
"""Rows won, and rows lost, of a benchmark."""
MAX_TEXT = 3000
"""Characters of a text."""


@dataclass(frozen=True)
class Table:
    """A comparison on one benchmark, ready for the page."""

    title: str
    about: str
    first: str
    second: str
    lines: list[dict[str, Any]]
    published: list[str]
    moves: list[dict[str, Any]]


def lay_out(
    first: str, second: str, contrast: Contrast, scale: float, published: Sequence[str]
) -> Table:
    """Lay out a contrast of two arms; `scale` makes points of the benchmark's number."""
    reach = max(
        abs(bound) * _points(difference, scale)
        for difference in contrast.differences
        for bound in (
            *((difference.low, difference.high) if difference.bounded else (difference.value,)),
            1e-9,
        )
    )
    return Table(
        f"{contrast.benchmark}: {second} and {first}",
        f"Asked and scored as {contrast.protocol}; {len(contrast.wins)} rows won, "
        f"{len(contrast.losses)} lost.",
        first,
        second,
        [
            _line(difference, _points(difference, scale), reach)
            for difference in contrast.differences
        ],
        list(published),
        list(_moves(contrast, (first, second))),
    )


def write_page(
    path: Path,
    title: str,
    conclusions: Sequence[str],
    cautions: Sequence[str],
    tables: Sequence[Table],
    drawings: Sequence[Mapping[str, Any]],
) -> Path:
    """Write the page; `drawings` are those of pass@k (`compare.draw_passes`)."""
    moves = [move for table in tables for move in table.moves]
    page = render(
        Path(__file__).parent,
        "comparison.html",
        "comparison.js",
        title=title,
        conclusions=conclusions,
        cautions=cautions,
        tables=tables,
        drawings=drawings,
        moves=moves,
        benchmarks=list(dict.fromkeys(move["benchmark"] for move in moves)),
        max_shown=MAX_SHOWN,
    )
    return write_bytes(path, page.encode("utf-8", "replace"))


def say_difference(difference: Difference, scale: float) -> str:
    """Return a difference in points and its interval, as far as there is one."""
    value, low, high = (
        f"{scale * number:+.1f}" for number in (difference.value, difference.low, difference.high)
    )
    return (
        f"{value} [{low}, {high}]" if difference.bounded else f"{value} [no interval: one cluster]"
    )


def _points(difference: Difference, scale: float) -> float:
    return 100.0 if difference.column else scale


def _line(difference: Difference, scale: float, reach: float) -> dict[str, Any]:
    def place(value: float) -> float:
        return round(WIDTH / 2 * (1 + 0.95 * scale * value / reach), 1)

    low, high = (
        (difference.low, difference.high)
        if difference.bounded
        else (difference.value, difference.value)
    )
    return {
        "name": f"{difference.number}, {difference.column} {difference.group}"
        if difference.column
        else difference.number,
        "within": bool(difference.column),
        "verdict": difference.verdict,
        "count": difference.count,
        "first": f"{scale * difference.first:.1f}",
        "second": f"{scale * difference.second:.1f}",
        "difference": say_difference(difference, scale),
        "low": place(low),
        "high": place(high),
        "at": place(difference.value),
    }


def _moves(contrast: Contrast, names: tuple[str, str]) -> Iterator[dict[str, Any]]:
    for kind, moves in (("won", contrast.wins), ("lost", contrast.losses)):
        for move in moves[:MAX_SHOWN]:
            rows = (move.first, move.second)
            yield {
                "kind": kind,
                "benchmark": contrast.benchmark,
                "id": move.first.name,
                "change": f"{move.change:+.2f}",
                "question": move.first.question[:MAX_TEXT],
                "truth": plain_truth(move.first.truth),
                "answers": [
                    (
                        f"{name}: official {_said(row.official)}, strict {_said(row.strict)}",
                        "no answer" if row.answer is None else row.answer[:MAX_TEXT],
                        row.text[:MAX_TEXT] if row.text != row.answer else "",
                    )
                    for name, row in zip(names, rows, strict=True)
                ],
            }


def _said(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}"
