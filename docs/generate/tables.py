"""Small pieces of the generated Markdown: cells of tables, prose with angle brackets, types."""

from __future__ import annotations

import inspect
import re
import types
import typing
from typing import Any

WORDS = {"Path": "path", "Any": "any", "dict": "mapping", "Mapping": "mapping"}


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


def type_text(annotation: Any) -> str:
    """Return a type as one writes it: `list of str`, `'a' | 'b'`, `mapping of str to int`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("null" if a is type(None) else type_text(a) for a in arguments)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    inner = [type_text(a) for a in arguments if a is not ...]
    if origin is not None and len(inner) == 2 and origin is not tuple:
        return f"mapping of {inner[0]} to {inner[1]}"
    if origin is tuple and len(inner) > 1:
        return f"({', '.join(inner)})"
    if inner:
        return f"list of ({inner[0]})" if " | " in inner[0] else f"list of {inner[0]}"
    name = annotation.__name__ if inspect.isclass(annotation) else str(annotation).split(".")[-1]
    return WORDS.get(name, name)


def value_text(value: Any) -> str:
    """Return a default as one writes it in YAML, where it is short; as Python does elsewhere."""
    plain = {None: "null", True: "true", False: "false"}
    return plain[value] if value is None or isinstance(value, bool) else repr(value)


def _outside_code(text: str, change: typing.Callable[[str], str]) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(pieces))


def _escape_bar(text: str) -> str:
    return text.replace("|", "\\|")
