"""Tables in Markdown."""

from __future__ import annotations


def head(columns: str) -> list[str]:
    """Return the first two lines of a table of these columns: `| a | b |`."""
    return [columns, "|---" * (columns.count("|") - 1) + "|"]
