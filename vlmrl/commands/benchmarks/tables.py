"""The results of benchmarks as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from vlmrl.benchmarking.scoring import Figure, Result

__all__ = ["make_table", "print_results"]


def print_results(results: Sequence[Result]) -> None:
    """Print a table of the results, and one of each benchmark's groups."""
    table = make_table("benchmark", "n", "official", "strict", "unread", "cut", "disagree")
    for one in results:
        shares = [f"{one.unread:.0%}", f"{one.truncated:.0%}", str(one.disagreeing)]
        table.add_row(one.benchmark, str(len(one.rows)), *_show(one, one.figures), *shares)
    console = Console()
    console.print(table)
    for one in results:
        for column, values in one.groups.items():
            groups = make_table(f"{one.benchmark}: {column}", "n", "official", "strict")
            for value, figures in values.items():
                count = str(max(figure.count for figure in figures.values()))
                groups.add_row(value, count, *_show(one, figures))
            console.print(groups)
    asked = ", ".join(sorted({one.protocol for one in results}))
    console.print(
        f"Asked and scored as {asked}. In brackets: 95 % intervals, clusters drawn whole. unread: no "
        "answer by the official rule; cut: at the limit of tokens; disagree: rows to look at."
    )


def make_table(*columns: str) -> Table:
    """Return an empty table with these columns."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _show(result: Result, figures: Mapping[str, Figure]) -> Iterator[str]:
    """Yield the official and the strict number with their intervals, as the harness prints them."""
    scale, digits = {"fraction": (1, 3), "percent": (100, 1), "sum": (1, 0)}[result.unit]
    for name in ("official", "strict"):
        if found := figures.get(name):
            numbers = (found.value, found.low, found.high)
            value, low, high = (f"{scale * number:.{digits}f}" for number in numbers)
            yield f"{value} [{low}, {high}]"
        else:
            yield "-"
