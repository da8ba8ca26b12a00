"""The table of the keys of a config by what a resume makes of another value."""

from __future__ import annotations

from itertools import groupby

from tables import code, header, row

from vlmrl.config.changes import classes


def table() -> str:
    """Return one row for each section and class: the keys."""
    lines = [*header("class", "section", "keys")]
    for how in ("fixed", "free", "noted"):
        keys = [key for key, own in classes() if own == how]
        for section, group in groupby(keys, lambda key: key.rpartition(".")[0]):
            names = ", ".join(code(key.rpartition(".")[2]) for key in group)
            lines.append(row(how, code(section) if section else "", names))
    return "\n".join(lines)
