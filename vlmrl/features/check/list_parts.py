"""What `vlmrl list` says of the parts that a config can name."""

from __future__ import annotations

import inspect
import re

from vlmrl import plugins
from vlmrl.assemble.validate import read_part
from vlmrl.config import tree


def describe(kind: str) -> list[str]:
    """Return lines on every shipped part of a kind: name, what it does, options with their defaults.

    Imports none of them.
    """
    lines = []
    for name in plugins.names(kind):
        part = read_part(kind, name)
        lines.append(f"{name}: {_first_sentence(part.docstring)}")
        for key, option in part.options.items():
            default = "required" if option.default is None else f"= {option.default}"
            lines.append(f"    {key}: {option.type} {default}")
            if option.description:
                lines.append(f"        {' '.join(option.description.split())}")
    return lines


def describe_configs() -> list[str]:
    """Return one line for every shipped config: its name and the first comment of its file."""
    lines = []
    for name, path in sorted(tree.shipped().items()):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        lines.append(f"{name}: {first.lstrip('# ')}")
    return lines


def first_sentence(plugin: type) -> str:
    """Return the first sentence of a class's docstring, on one line."""
    return _first_sentence(inspect.getdoc(plugin) or "")


def _first_sentence(docstring: str) -> str:
    text = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]
