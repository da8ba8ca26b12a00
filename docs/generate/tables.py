"""Small pieces of the generated Markdown: cells of tables, prose with angle brackets."""

from __future__ import annotations

import re
import typing


def row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(_outside_code(cell, _escape_bar).replace(chr(10), ' ') for cell in cells)} |"


def header(*titles: str) -> list[str]:
    """Return the first two lines of a table."""
    return [row(*titles), "|---" * len(titles) + "|"]


def escape(text: str) -> str:
    """Return prose with its angle brackets shown instead of read as HTML; code stays as it is."""
    return _outside_code(text, lambda piece: piece.replace("<", "&lt;"))


def code(text: str) -> str:
    """Return a text as inline code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def link_part(folder: str, name: str) -> str:
    """Return the link to the page of a part from a page in a folder of docs/, such as `recipes/`."""
    return f"[`{name}`](../reference/{folder}/{name}.md)"


def link_paper(number: str) -> str:
    """Return the link to a paper by its number on arXiv."""
    return f"[{number}](https://arxiv.org/abs/{number})"


def _outside_code(text: str, change: typing.Callable[[str], str]) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(pieces))


def _escape_bar(text: str) -> str:
    return text.replace("|", "\\|")
