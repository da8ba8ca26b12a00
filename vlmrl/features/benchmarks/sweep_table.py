"""The table of a sweep: held-out values before and after, paired gains, seeds as groups, and costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from vlmrl.errors import UserError
from vlmrl.features.benchmarks.compare import compare_results, say_difference
from vlmrl.features.benchmarks.comparison import Difference
from vlmrl.features.benchmarks.evaluated_data import ends_of
from vlmrl.features.benchmarks.sweep import Combination, SweptRuns, short_names
from vlmrl.features.benchmarks.tables import make_table
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import print_tables
from vlmrl.system.files import write_bytes, write_json
from vlmrl.truths.json_form import to_json

SEED = "run.seed"
POINTS = 100.0
"""Of a score."""
ABOUT = (
    "In points, hundredths of a score. In brackets: 95 % intervals of the paired difference, clusters drawn "
    "whole. Tokens: those that were trained on."
)


@dataclass(frozen=True)
class SweepRow:
    """A run of a sweep; or the runs of one setting, which differ in their seed alone."""

    values: Mapping[str, Any]
    """By swept key; of several runs without the seed."""
    folders: tuple[Path, ...]
    error: str | None = None
    """Why it failed; what follows is then not known."""
    first: float | None = None
    """The held-out metric before training; the mean of several seeds. None without an evaluation."""
    last: float | None = None
    gain: Difference | None = None
    """The last evaluation against the first, paired. None with fewer than two."""
    against_first: Difference | None = None
    """The last evaluation against that of the first setting, paired; only with all seeds of a setting."""
    cpu_seconds: float | None = None
    tokens: int | None = None
    """Loss tokens of all steps."""


@dataclass(frozen=True)
class Sweep:
    """A sweep: a row for each run, and one for each setting where the seed was swept."""

    metric: str | None
    rows: tuple[SweepRow, ...]
    settings: tuple[SweepRow, ...] = ()
    """Seeds as groups, of the runs that did not fail."""
    notes: tuple[str, ...] = ()
    """Settings that cannot be compared with the first, and why."""
    interrupted: bool = False
    """Whether Ctrl-C ended it; the same sweep goes on."""

    @property
    def failed(self) -> list[SweepRow]:
        """Return the rows of the runs that failed."""
        return [row for row in self.rows if row.error is not None]

    def __str__(self) -> str:
        """Return the table as Markdown."""
        return to_markdown(self)


def sum_up(runs: SweptRuns) -> Sweep:
    """Return the rows of the runs that have ended, from their folders.

    Raises:
        UserError: a file of a run is damaged.
    """
    ended = [c for c in runs.combinations if c.folder in runs.errors or _is_finished(c.folder)]
    rows = [_row_of(each, runs.errors.get(each.folder)) for each in ended]
    groups: dict[str, list[SweepRow]] = {}
    for row in rows:
        own = {key: value for key, value in row.values.items() if key != SEED}
        groups.setdefault(json.dumps(own), []).extend([row] if row.error is None else [])
    settings = [_join(json.loads(key), some) for key, some in groups.items() if some]
    notes: list[str] = []
    if next(iter(groups.values()), None):  # the first setting has not failed
        settings = [_against(settings[0], each, notes) for each in settings]
    has_seeds = any(SEED in row.values for row in rows)
    if not has_seeds:
        by_folder = {each.folders: each for each in settings}
        rows = [by_folder.get(row.folders, row) for row in rows]
    evaluation = runs.combinations[0].config.evaluation
    return Sweep(
        evaluation.metric if evaluation else None,
        tuple(rows),
        tuple(settings) if has_seeds else (),
        tuple(notes),
        runs.interrupted,
    )


def _is_finished(folder: Path) -> bool:
    summary = run_folder.read_summary(folder)
    return bool(summary and summary["finished"])


def _row_of(combination: Combination, error: str | None) -> SweepRow:
    folder = combination.folder
    row = SweepRow(combination.values, (folder,), error)
    if error is not None:
        return row
    summary = run_folder.read_summary(folder)
    assert summary is not None
    first, last = (
        summary[key]["metrics"][summary["metric"]] if summary[key] else None
        for key in ("first_evaluation", "last_evaluation")
    )
    lines = run_folder.read_metrics(folder)
    return replace(
        row,
        first=first,
        last=last,
        gain=_gain(row.folders),
        cpu_seconds=sum(summary["cpu_seconds"].values()),
        tokens=round(sum(line.get("update/tokens", 0) for line in lines)),
    )


def _join(values: Mapping[str, Any], rows: Sequence[SweepRow]) -> SweepRow:
    """Return the row of one setting, from those of its seeds."""
    if len(rows) == 1:
        return replace(rows[0], values=values)
    folders = tuple(folder for row in rows for folder in row.folders)

    def mean(numbers: Sequence[float | None]) -> float | None:
        known = [number for number in numbers if number is not None]
        return fmean(known) if len(known) == len(numbers) else None

    return SweepRow(
        values,
        folders,
        first=mean([row.first for row in rows]),
        last=mean([row.last for row in rows]),
        gain=_gain(folders),
        cpu_seconds=sum(row.cpu_seconds or 0.0 for row in rows),
        tokens=sum(row.tokens or 0 for row in rows),
    )


def _gain(folders: Sequence[Path]) -> Difference | None:
    if any(len(run_folder.steps_in(folder / "evals", ".jsonl")) < 2 for folder in folders):
        return None
    ends = [ends_of(str(folder)) for folder in folders]
    return _difference(*(",".join(side) for side in zip(*ends, strict=True)))


def _against(first: SweepRow, row: SweepRow, notes: list[str]) -> SweepRow:
    """Return a setting's row with its difference to the first; a note says why there is none."""
    if row is first or row.last is None or first.last is None:
        return row
    arms = (",".join(map(str, each.folders)) for each in (first, row))
    try:
        return replace(row, against_first=_difference(*arms))
    except UserError as error:
        notes.append(f"{_say_values(row.values)}: not compared with the first: {error}")
        return row


def _difference(first: str, second: str) -> Difference:
    (comparison,) = compare_results((first, second))
    return comparison.contrasts[0].main


# ------------------------------------------------------------------------------- for people


def show(sweep: Sweep) -> None:
    """Print the table in the terminal, and below it what is to be said of it."""
    header, *lines = _cells(sweep)
    table = make_table(*header)
    for line in lines:
        table.add_row(*line)
    print_tables(Console(), table, *remarks(sweep))


def to_markdown(sweep: Sweep) -> str:
    """Return the table as Markdown, and below it what is to be said of it."""
    header, *lines = _cells(sweep)
    rows = [header, ["---"] * len(header), *lines]
    table = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([*table, "", *remarks(sweep), ""])


def remarks(sweep: Sweep) -> list[str]:
    """Return the lines below the table: how to read it, what failed, what was not compared."""
    failed = [f"{row.folders[0]}: failed: {row.error}" for row in sweep.failed]
    return [ABOUT, *failed, *sweep.notes]


def _cells(sweep: Sweep) -> list[list[str]]:
    """Return the header and a line for each row: a setting, and its seeds below it."""
    keys = short_names(sweep.rows[0].values) if sweep.rows else {}
    metric = sweep.metric or "held-out"
    figures = [f"{metric} first", "last", "gain", "vs first", "CPU s", "tokens"]
    lines = [[*keys.values(), *figures]]
    for row in _in_order(sweep):
        seeds = f"{len(row.folders)} seeds"
        values = [_say(row.values[key]) if key in row.values else seeds for key in keys]
        lines.append([*values, *_figures(row)])
    return lines


def _in_order(sweep: Sweep) -> list[SweepRow]:
    """Return all rows, those of several seeds before their seeds."""
    rows = []
    settings = {each.folders[0]: each for each in sweep.settings}
    for row in sweep.rows:
        setting = settings.get(row.folders[0])
        if setting is not None:
            rows.append(setting)
        rows.append(row)
    return rows


def _figures(row: SweepRow) -> list[str]:
    if row.error is not None:
        return ["failed", *["-"] * 5]

    def say(value: Any, how: Callable[[Any], str]) -> str:
        return "-" if value is None else how(value)

    scores = [say(value, lambda v: f"{POINTS * v:.1f}") for value in (row.first, row.last)]
    differences = [
        say(each, lambda d: say_difference(d, POINTS)) for each in (row.gain, row.against_first)
    ]
    costs = [say(row.cpu_seconds, lambda v: f"{v:.0f}"), say(row.tokens, lambda v: f"{v:,}")]
    return [*scores, *differences, *costs]


def _say(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _say_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_say(value)}" for key, value in values.items())


# -------------------------------------------------------------------------------- for files


def write(sweep: Sweep, out: Path) -> None:
    """Write the table into a folder: sweep.json, with scores as fractions, and sweep.md."""
    tree = {
        "metric": sweep.metric,
        "finished": not sweep.interrupted and not sweep.failed,
        "runs": [_as_json(row) for row in sweep.rows],
        "settings": [_as_json(row) for row in sweep.settings],
        "notes": [*sweep.notes],
    }
    write_json(out / "sweep.json", to_json(tree))
    write_bytes(out / "sweep.md", to_markdown(sweep).encode())


def _as_json(row: SweepRow) -> dict[str, Any]:
    differences = {
        key: None if each is None else {"value": each.value, "low": each.low, "high": each.high}
        for key, each in (("gain", row.gain), ("against_first", row.against_first))
    }
    return {
        "values": row.values,
        "folders": [str(folder) for folder in row.folders],
        "error": row.error,
        "first": row.first,
        "last": row.last,
        **differences,
        "cpu_seconds": row.cpu_seconds,
        "tokens": row.tokens,
    }
