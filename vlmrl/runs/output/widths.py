"""Lines in the columns that there are: broken between parts and words, never inside a number."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence

__all__ = ["SEPARATOR", "columns_of_terminal", "fit", "shorten", "wrap"]

SEPARATOR = "  "
"""Between two parts of a line."""
INDENT = "  "


def columns_of_terminal() -> int:
    """Return the columns of the terminal at standard output, or what the variable COLUMNS says."""
    return shutil.get_terminal_size().columns


def fit(parts: Sequence[str], columns: int) -> str:
    """Return as many of the first parts as fit into one line; the first one is shortened if need be."""
    if not parts or len(parts[0]) > columns:
        return shorten(parts[0], columns) if parts else ""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(SEPARATOR) + len(part) > columns:
            break
        line += SEPARATOR + part
    return line


def wrap(parts: Sequence[str], columns: int) -> list[str]:
    """Return the parts as lines: broken between parts, a part too long for a line between its words.

    A word that is longer than a line stays whole: the terminal breaks it, and a copy of it is still right.
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(SEPARATOR) + len(part) <= columns:
            lines[-1] += SEPARATOR + part
            continue
        indent = INDENT if lines else ""
        lines += textwrap.wrap(
            part,
            max(columns, len(INDENT) + 1),
            initial_indent=indent,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return lines


def shorten(text: str, columns: int) -> str:
    """Return a text in at most `columns` characters; `…` stands for the words that have no room."""
    if len(text) <= columns:
        return text
    kept = text[: max(0, columns - 1)]
    whole = kept if text[len(kept) : len(kept) + 1] in ("", " ") else kept.rpartition(" ")[0]
    return f"{(whole or kept).rstrip()}…"


def is_dumb() -> bool:
    """Return whether the terminal cannot move its cursor, as it says."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")
