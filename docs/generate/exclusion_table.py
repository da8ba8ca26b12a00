"""The table of the keys and parts of a config that exclude each other."""

from __future__ import annotations

from tables import header, row

from vlmrl.config.exclusions import exclusions


def table() -> str:
    """Return one row for each exclusion."""
    return "\n".join([*header("this", "excludes", "because"), *(row(*one) for one in exclusions())])
