"""The page of what `--json` writes, from the events in the code."""

from __future__ import annotations

import dataclasses
import inspect
import typing

from tables import code, escape, header, row

from vlmrl.config.docstrings import field_docstrings
from vlmrl.config.key_help import type_text
from vlmrl.runs.output import events

INTRODUCTION = """# Output

What commands with `--json` write to standard output: one JSON object a line, as it happens. `kind` says
what it is, and each kind always has the same keys. A key may be added, and a kind; none is renamed or
removed without a line in the [changelog](changelog.md). Numbers that are not finite are `null`, and so is
what is not known. `metrics` has the names of [Metrics](metrics.md).

Whatever else writes to standard output meanwhile (a verifier that prints, a library) goes to standard
error. A mistake or a failure is one line there, as without `--json`, and an object `failed`; the exit
codes are [the same](commands.md).
"""


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for kind, event in events.kinds().items():
        lines += [f"## `{kind}`", "", escape(inspect.getdoc(event) or ""), ""]
        told, types = field_docstrings(event), typing.get_type_hints(event)
        lines += header("key", "type", "what it is")
        for field in dataclasses.fields(event):
            kind_of = type_text(types[field.name])
            lines.append(row(code(field.name), kind_of, escape(told.get(field.name, ""))))
        lines.append("")
    return "\n".join(lines)
