"""The results of benchmarks as one table for a spreadsheet (CSV) and one for a paper (LaTeX)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlmrl.commands.benchmarks.session import EvaluatedBenchmark
from vlmrl.commands.benchmarks.tables import show
from vlmrl.system.atomic_files import write_bytes

__all__ = ["write_tables"]

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


def _lines(evaluated: Sequence[EvaluatedBenchmark]) -> Iterator[tuple[str | float | int, ...]]:
    for each in evaluated:
        for control, one in {"": each.result, **each.controls}.items():
            groups = {f"{c} {v}": f for c, some in one.groups.items() for v, f in some.items()}
            for group, figures in {"": one.figures, **groups}.items():
                for number, figure in figures.items():
                    found = (figure.value, figure.low, figure.high, figure.count)
                    note = one.note if number.startswith("official") else ""
                    yield (one.benchmark, control, group, number, *found, one.protocol, note)


def _latex(evaluated: Sequence[EvaluatedBenchmark]) -> str:
    """Return a tabular for the package booktabs, with intervals in brackets."""
    lines = [r"\begin{tabular}{lrll}", r"\toprule"]
    lines += [r"benchmark & rows & official & strict \\", r"\midrule"]
    for each in evaluated:
        for control, one in {"": each.result, **each.controls}.items():
            name = f"{one.benchmark}, {control}" if control else one.benchmark
            cells = (name, str(len(one.rows)), *show(one, one.figures))
            lines.append(" & ".join(cell.translate(ESCAPED) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
