"""What every reader of a data file returns: rows that are read when asked for and say where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["WHERE", "Rows", "cell", "paths"]

WHERE = "__where__"
"""Key of a row under which a reader says where the row stands (`train.jsonl:17`)."""

MAX_ITEMS = 50
"""Items of a nested list whose paths `paths` names."""

Rows = Sequence[Mapping[str, Any]]


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or of one nested in it by a dotted path; None if there is none.

    `messages.0.content` takes an item of a list by its position, `objects.bbox` of a list of objects
    takes that key of each of them. A column whose own name has dots comes first.
    """
    if column in row or "." not in column:
        return row.get(column)
    return _walk(row, column.split("."))


def paths(value: Any, above: str = "") -> Iterator[str]:
    """Yield the names of a row's columns, and the dotted paths of what is nested in them."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{above}{key}"
            yield from paths(inner, f"{above}{key}.")
    elif isinstance(value, list):
        for number, item in enumerate(value[:MAX_ITEMS]):
            if isinstance(item, Mapping | list):
                yield from paths(item, above)
            if above:
                yield f"{above}{number}"
                yield from paths(item, f"{above}{number}.")


def _walk(value: Any, steps: list[str]) -> Any:
    for number, step in enumerate(steps):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)] if int(step) < len(value) else None
        elif isinstance(value, list) and value:
            return [_walk(item, steps[number:]) for item in value]
        else:
            return None
    return value
