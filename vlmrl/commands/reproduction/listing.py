"""List the records of published figures, for a person and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from vlmrl.commands.reproduction.records import Record

__all__ = ["describe", "list_records"]


def list_records(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield a line for each record: name, CPU minutes, figures, what it needs, what it says."""
    width = max(map(len, records), default=0)
    yield f"{'record':{width}}  CPU min  figures  says"
    for name, record in records.items():
        needs = f" (needs {', '.join(record.needs)})" if record.needs else ""
        minutes = "by hand" if record.by_hand else f"{record.minutes:7.1f}"
        yield f"{name:{width}}  {minutes}  {len(record.figures):7}  {record.says}{needs}"
    repeated = [record for record in records.values() if record.command]
    yield (
        f"{sum(len(r.figures) for r in repeated)} figures of {len(repeated)} commands, "
        f"{sum(r.minutes for r in repeated):.0f} CPU minutes in all; "
        f"{sum(len(r.figures) for r in records.values() if r.by_hand)} figures measured by hand"
    )


def describe(records: Mapping[str, Record]) -> Iterator[dict[str, Any]]:
    """Yield each figure with all that its record says, as JSON has it."""
    for name, record in records.items():
        whole = msgspec.to_builtins(record)
        del whole["figures"]
        for key, figure in record.figures.items():
            one = msgspec.to_builtins(figure)
            yield {**whole, **one, "name": f"{name}/{key}", "span": list(figure.span)}
