"""A benchmark's result as files: `result.json` with the numbers, `rows.csv` with every row.

The rows hold all that the aggregates need, so that results are compared without data or model.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmrl.benchmarking.scoring import Figure, Result, RowScore
from vlmrl.benchmarking.statistics.pooled_boxes import Detections
from vlmrl.errors import UserError
from vlmrl.system import atomic_files

__all__ = ["CONTROLS", "Stored", "find_results", "read_result", "write_result"]

RESULT, ROWS, CONTROLS = "result.json", "rows.csv", "controls.json"
GROUP = "group "
"""Begins the column of a group."""
MAX_FIELD = 2**24
"""Longest text in a table, characters."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A result with the folder it was read from, and how it came about."""

    folder: Path
    result: Result
    manifest: Mapping[str, Any]
    passes: Mapping[int, Figure] = field(default_factory=dict)
    """pass@k by k; empty if no answers were sampled."""


def write_result(folder: Path, result: Result, manifest: Mapping[str, Any]) -> None:
    """Write a result with its manifest, and its rows."""
    numbers = asdict(replace(result, rows=()))
    del numbers["rows"]
    atomic_files.write_json(folder / RESULT, {**numbers, "manifest": manifest})
    groups = list(result.rows[0].groups) if result.rows else []
    plain = [name for name in RowScore.__dataclass_fields__ if name not in ("groups", "details")]

    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            table = csv.writer(file)
            table.writerow([*plain, *(GROUP + name for name in groups), "details"])
            for row in result.rows:
                values = [getattr(row, name) for name in plain]
                details = json.dumps({kind: _plain(one) for kind, one in row.details.items()})
                table.writerow([*values, *(row.groups[name] for name in groups), details])

    atomic_files.write_whole(folder / ROWS, write)


def read_result(folder: Path) -> Stored:
    """Read what `write_result` wrote.

    Raises:
        UserError: there is no result, or it is of an older version or damaged.
    """
    csv.field_size_limit(MAX_FIELD)
    try:
        numbers = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        with (folder / ROWS).open(newline="", encoding="utf-8") as file:
            rows = [_row(line) for line in csv.DictReader(file)]
        manifest = numbers.pop("manifest")
        figures = _figures(numbers.pop("figures"))
        groups = {
            column: {value: _figures(each) for value, each in values.items()}
            for column, values in numbers.pop("groups").items()
        }
        aggregates = {name: tuple(how) for name, how in numbers.pop("numbers").items()}
        passes = _passes(folder / CONTROLS)
        result = Result(**numbers, figures=figures, groups=groups, numbers=aggregates, rows=rows)
    except OSError as error:
        raise UserError(
            f"{folder}: expected the result of a benchmark: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise UserError(
            f"{folder}: expected a result of this version of vlmrl, got {type(error).__name__}: "
            f"{error}; `vlmrl eval` with the same --out scores the stored answers again"
        ) from error
    return Stored(folder, result, manifest, passes)


def find_results(path: Path) -> dict[str, Stored]:
    """Return the results in a folder by benchmark (`name`, or `name:split`): its own, or those in it.

    Raises:
        UserError: there is none.
    """
    folders = (
        [path] if (path / RESULT).is_file() else sorted(p.parent for p in path.glob(f"*/{RESULT}"))
    )
    if not folders:
        raise UserError(f"{path}: expected {RESULT} here or in a folder below, got none")
    stored = [read_result(folder) for folder in folders]
    return {one.manifest.get("benchmark", one.result.benchmark): one for one in stored}


def _figures(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in found.items()}


def _passes(path: Path) -> dict[int, Figure]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))["pass_at_k"]
    return {int(k): figure for k, figure in _figures(found).items()}


def _row(line: Mapping[str, str]) -> RowScore:
    groups = {key.removeprefix(GROUP): v for key, v in line.items() if key.startswith(GROUP)}
    plain: dict[str, Any] = {key: v for key, v in line.items() if not key.startswith(GROUP)}
    details = json.loads(plain.pop("details"))
    for name in ("official", "strict"):
        plain[name] = float(plain[name]) if plain[name] else None
    plain |= {"index": int(plain["index"]), "read": plain["read"] == "True"}
    plain["answer"] = plain["answer"] or None
    found = {k: Detections.from_json(v) if "found" in v else v for k, v in details.items()}
    return RowScore(groups=groups, **plain, details=found)


def _plain(detail: Any) -> Any:
    return detail.to_json() if isinstance(detail, Detections) else detail
