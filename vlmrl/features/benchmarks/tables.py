"""The results of benchmarks as tables in the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table

from vlmrl.benchmarking.base import published_values
from vlmrl.benchmarking.scoring import Figure, Result, RowScore
from vlmrl.pages.media import say_truth
from vlmrl.runs.output.events import Benchmarked
from vlmrl.runs.output.outputs import Output
from vlmrl.system.files import write_bytes

if TYPE_CHECKING:
    from vlmrl.features.benchmarks.session import EvaluatedBenchmark  # brings torch

# --------------------------------------------------------------------------------------------------
# How well the confidences that answers state agree with how often they are right.


BINS = 10
RIGHT = 0.5
"""An answer is right when its strict score is at least this."""
_STATED = re.compile(r"<confidence>\s{0,9}([0-9]{1,3}(?:\.[0-9]{1,9})?)\s?(%?)\s{0,9}</confidence>")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Over `count` answers: the expected calibration error and the Brier score, both in [0, 1]."""

    count: int
    error: float
    brier: float


def calibrate(rows: Sequence[RowScore]) -> Calibration | None:
    """Return the calibration of the last `<confidence>0.9</confidence>` (or `90%`) of each answer.

    Answers without one, or with one outside [0, 1], are left out; None if that is all.

    Source: Guo et al. 2017, arXiv 1706.04599, eq. 3, ten bins of equal width; Brier 1950.
    """
    stated = [
        (_stated(row.text), float(row.strict >= RIGHT)) for row in rows if row.strict is not None
    ]
    pairs = [(confidence, right) for confidence, right in stated if confidence is not None]
    if not pairs:
        return None
    confidence, right = np.array(pairs, float).T
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, right - confidence, BINS)
    brier = float(np.mean((confidence - right) ** 2))
    return Calibration(len(pairs), float(np.abs(gaps).sum() / len(pairs)), brier)


def _stated(text: str) -> float | None:
    matches = _STATED.findall(text)
    if not matches:
        return None
    value = float(matches[-1][0]) / (100 if matches[-1][1] else 1)
    return value if value <= 1 else None


# --------------------------------------------------------------------------------------------------


COUNTS = ("n", "unread", "cut", "disagree", "")
"""Columns that are too short to break."""
SCALES = {"fraction": (1, 3), "percent": (100, 1), "sum": (1, 0)}
"""By the unit of a number: its factor, and its digits."""


def sum_up(each: EvaluatedBenchmark, folder: Path) -> Benchmarked:
    """Return what is said of a benchmark's result, which its folder holds."""
    result = each.result
    shown = dict(zip(("official", "strict"), show(result, result.figures), strict=True))
    return Benchmarked(
        benchmark=result.benchmark,
        protocol=result.protocol,
        rows=len(result.rows),
        figures=_as_numbers(result.figures),
        unit=result.unit,
        shown=shown,
        lower_bound=result.lower_bound,
        unread=result.unread,
        truncated=result.truncated,
        disagreeing=result.disagreeing,
        controls={name: _as_numbers(control.figures) for name, control in each.controls.items()},
        pass_at_k=_as_numbers(each.pass_at_k),
        notes=[*extra_lines(each)],
        folder=folder,
    )


def _as_numbers(figures: Mapping[str, Figure]) -> dict[str, dict[str, float | None]]:
    return {name: asdict(figure) for name, figure in figures.items()}


def show_results(evaluated: Sequence[EvaluatedBenchmark], output: Output) -> None:
    """Show a table of the results with their controls, and one of each benchmark's groups."""
    table = make_table("benchmark", "n", "official", "strict", "unread", "cut", "disagree")
    results = [each.result for each in evaluated]
    for each in evaluated:
        for name, result in {"": each.result, **each.controls}.items():
            shares = [f"{result.unread:.0%}", f"{result.truncated:.0%}", str(result.disagreeing)]
            called = f"  {name}" if name else result.benchmark
            table.add_row(called, str(len(result.rows)), *show(result, result.figures), *shares)
            for more, figures in other_numbers(result):
                table.add_row(f"  {more}", str(len(result.rows)), *show(result, figures))
    output.show(table)
    for each in evaluated:
        output.show(*known_lines(each.result.benchmark))
    for result in results:
        for column, values in result.groups.items():
            groups = make_table(f"{result.benchmark}: {column}", "n", "official", "strict")
            for value, figures in values.items():
                count = str(max(figure.count for figure in figures.values()))
                groups.add_row(value, count, *show(result, figures, within=True))
            output.show(groups)
    asked = ", ".join(sorted({result.protocol for result in results}))
    output.show(
        f"Asked and scored as {asked}. In brackets: 95 % intervals, clusters drawn whole. unread: no "
        "answer by the official rule, or by the strict one where no other ran; cut: at the limit of "
        "tokens; disagree: rows to look at."
    )


def extra_lines(each: EvaluatedBenchmark) -> Iterator[str]:
    """Yield what the official number lacks, calls, the best constant answers, pass@k, the calibration."""
    name, rows = each.result.benchmark, each.result.rows
    if called := [row.strict or 0.0 for row in rows if "calls" in row.details]:
        others = [row.strict or 0.0 for row in rows if "calls" not in row.details]
        apart = f", {sum(others) / len(others):.3f} elsewhere" if others else ""
        share = f"{len(called)} of {len(rows)} rows"
        yield f"{name}: tools were called on {share}: strict {sum(called) / len(called):.3f} there{apart}"
    for control, result in {"": each.result, **each.controls}.items():
        title = f"{name}, {control}" if control else name
        if result.note:
            yield f"{title}: official: {result.note}"
        if result.tagged > 0.5:
            yield (
                f"{title}: {result.tagged:.0%} of the answers hold tags that their template does not know, "
                "and are scored with them: give --template, e.g. think_answer"
            )
    for best in each.constants:
        scale, digits = SCALES[each.result.unit]
        shown = f"{scale * best.value:.{digits}f} by {best.number}"
        yield f"{name}: the best constant answer, {best.answer!r}, has {shown}"
    for k, figure in each.pass_at_k.items():
        yield f"{name}: pass@{k} {say_figure(figure)}"
    if (shared := each.overlap) is not None:
        yield (
            f"{name}: of {shared.rows} rows {len(shared.images)} share an image with the training data, "
            f"{len(shared.texts)} eight words in a row"
        )
    if (calibration := calibrate(each.result.rows)) is not None:
        yield (
            f"{name}: {calibration.count} answers state a confidence: "
            f"calibration error {calibration.error:.3f}, Brier score {calibration.brier:.3f}"
        )


def known_lines(benchmark: str) -> Iterator[str]:
    """Yield the published values of a benchmark, each with its protocol and where it stands."""
    for known in published_values(benchmark):
        yield (
            f"{benchmark}: published: {known.model} {known.value:g} ({known.protocol}; {known.source})"
        )


def plain_truth(stored: str, frame: Mapping[str, Any] | None = None) -> str:
    """Return a row's stored truth without the marks of JSON; one that was cut as it is.

    Places are in the space of the frame, if it is known.
    """
    try:
        truth = json.loads(stored)
    except ValueError:
        return stored
    return say_truth(truth, frame)


def make_table(*columns: str) -> Table:
    """Return an empty table with these columns; in a narrow terminal names and numbers are broken."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(columns[0], min_width=10, overflow="fold")
    for column in columns[1:]:
        table.add_column(column, no_wrap=column in COUNTS, overflow="fold")
    return table


def other_numbers(result: Result) -> Iterator[tuple[str, Mapping[str, Figure]]]:
    """Yield the further numbers of a benchmark, each with the official and the strict figure."""
    by_name: dict[str, dict[str, Figure]] = {}
    for number, figure in result.figures.items():
        kind, _, name = number.partition(" ")
        if name:
            by_name.setdefault(name, {})[kind] = figure
    yield from by_name.items()


def say_figure(figure: Figure, scale: float = 1, digits: int = 3) -> str:
    """Return a figure times `scale` with its interval, or that there are too few rows for one."""
    value = f"{scale * figure.value:.{digits}f}"
    if figure.low is None or figure.high is None:
        return f"{value} [too few rows]"
    return f"{value} [{scale * figure.low:.{digits}f}, {scale * figure.high:.{digits}f}]"


def show(result: Result, figures: Mapping[str, Figure], within: bool = False) -> Iterator[str]:
    """Yield the official and the strict number with their intervals, as the harness prints them.

    `within` says that the figures are those of a group of rows.

    An official number that is a lower bound begins with `≥`.
    """
    for name in ("official", "strict"):
        if figure := figures.get(name):
            # Of a benchmark whose number is a sum, a group's is a mean.
            unit = "fraction" if within and result.unit == "sum" else result.unit
            bound = "≥ " if result.lower_bound and name == "official" else ""
            yield bound + say_figure(figure, *SCALES[unit])
        else:
            yield "-"


# --------------------------------------------------------------------------------------------------
# The results of benchmarks as one table for a spreadsheet (CSV) and one for a paper (LaTeX).


COLUMNS = (
    "benchmark", "control", "group", "number", "value", "low", "high", "rows", "protocol", "note",
)  # fmt: skip
ESCAPED = str.maketrans({**{c: f"\\{c}" for c in "&%$#_{}"}, "≥": r"$\geq$"})


def write_tables(evaluated: Sequence[EvaluatedBenchmark], out: Path) -> None:
    """Write `results.csv`, one line a number and group as a fraction, and `results.tex` as printed."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    table.writerows(_lines(evaluated))
    write_bytes(out / "results.csv", text.getvalue().encode("utf-8", "replace"))
    write_bytes(out / "results.tex", _latex(evaluated).encode("utf-8", "replace"))


def _lines(evaluated: Sequence[EvaluatedBenchmark]) -> Iterator[tuple[str | float | None, ...]]:
    for each in evaluated:
        for control, result in {"": each.result, **each.controls}.items():
            groups = {f"{c} {v}": f for c, some in result.groups.items() for v, f in some.items()}
            for group, figures in {"": result.figures, **groups}.items():
                for number, figure in figures.items():
                    values = (figure.value, figure.low, figure.high, figure.count)
                    note = result.note if number.startswith("official") else ""
                    yield (result.benchmark, control, group, number, *values, result.protocol, note)


def _latex(evaluated: Sequence[EvaluatedBenchmark]) -> str:
    """Return a tabular for the package booktabs, with intervals in brackets."""
    lines = [r"\begin{tabular}{lrll}", r"\toprule"]
    lines += [r"benchmark & rows & official & strict \\", r"\midrule"]
    for each in evaluated:
        for control, result in {"": each.result, **each.controls}.items():
            name = f"{result.benchmark}, {control}" if control else result.benchmark
            cells = (name, str(len(result.rows)), *show(result, result.figures))
            lines.append(" & ".join(cell.translate(ESCAPED) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
