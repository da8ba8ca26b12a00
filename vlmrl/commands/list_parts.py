"""What `vlmrl list` says of the parts that a config can name."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

from vlmrl import plugins
from vlmrl.config import tree


def describe(kind: str) -> list[str]:
    """Lines on every shipped plugin of a kind: name, what it does, options with their defaults."""
    lines = []
    for name in plugins.names(kind):
        plugin = plugins.load(kind, name)
        lines.append(f"{name}: {first_sentence(plugin)}")
        for key, option in plugins.options_of(plugin).items():
            default = "required" if option.required else f"= {option.default!r}"
            lines.append(f"    {key}: {type_name(option.type)} {default}")
    return lines


def describe_configs() -> list[str]:
    """One line for every shipped config: its name and the first comment of its file."""
    lines = []
    for name, path in sorted(tree.shipped().items()):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        lines.append(f"{name}: {first.lstrip('# ')}")
    return lines


def first_sentence(plugin: type) -> str:
    """The first sentence of a class's docstring, on one line."""
    text = " ".join((inspect.getdoc(plugin) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0]


def type_name(type_: Any) -> str:
    """A type as one writes it: `float`, `str | None`, `'a' | 'b'` for a Literal."""
    if typing.get_origin(type_) is typing.Literal:
        return " | ".join(repr(value) for value in typing.get_args(type_))
    if inspect.isclass(type_) and not typing.get_args(type_):
        return type_.__name__
    return str(type_).replace("typing.", "").replace("collections.abc.", "")
