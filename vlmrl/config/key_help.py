"""What the keys of a config are: type, default and description of each, and where a text sets them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from vlmrl.config import tree
from vlmrl.config.docstrings import field_docstrings
from vlmrl.config.section import MayChange, Section, section_in
from vlmrl.config.whole import Config

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WORDS = {"Path": "path", "Any": "any", "dict": "mapping", "Mapping": "mapping"}
MERGE = "tag:yaml.org,2002:merge"
"""The tag of `<<`, which is no key."""


@dataclass(frozen=True)
class KeyHelp:
    """A key of a config by its path, with its type and default as one writes them."""

    path: str
    type: str
    default: str
    description: str


def help_of(path: str) -> KeyHelp | None:
    """Return the help of a key, or of the nearest key above it that a section has; None if there is none.

    Numbers of a list, as in `rewards.0.weight`, and names that the user gives in a map are no keys.
    """
    section: type[Section] | None = Config
    is_named, known, nearest = False, "", None
    for part in path.split("."):
        known = f"{known}.{part}".lstrip(".")
        if part.isdecimal() or is_named:
            is_named = False
        elif section is None or part not in section.model_fields:
            break
        else:
            field = section.model_fields[part]
            nearest = help_of_field(known, section, part)
            section = section_in(field.annotation)
            is_named = typing.get_origin(field.annotation) is dict
    return nearest


def all_keys() -> list[KeyHelp]:
    """Return the help of every key, as the page of config keys lists them."""
    return [
        help_of_field(f"{path}.{name}".lstrip("."), section, name)
        for path, section in sections()
        for name in section.model_fields
    ]


def sections() -> Iterator[tuple[str, type[Section]]]:
    """Yield every section with its path; one that lists hold only where it is first named."""
    queue: list[tuple[str, type[Section]]] = [("", Config)]
    listed = set[type[Section]]()
    while queue:
        path, section = queue.pop(0)
        yield path, section
        inner = []
        for name, field in section.model_fields.items():
            held = section_in(field.annotation)
            if held and held not in listed:
                # The user gives each section of a map its name.
                each = ".NAME" if typing.get_origin(field.annotation) is dict else ""
                inner.append((f"{path}.{name}{each}".lstrip("."), held))
                listed |= {held} if "list" in str(field.annotation) else set()
        queue = inner + queue


def help_of_field(path: str, section: type[Section], name: str) -> KeyHelp:
    """Return the help of a section's key, at a path; its type has its bounds: `int, ≥ 1, or a schedule`."""
    field = section.model_fields[name]
    bounds = [
        f", {sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in BOUNDS.items()
        if getattr(rule, key, None) is not None
    ]
    changes = any(isinstance(rule, MayChange) for rule in field.metadata)
    kind = _kind(field.annotation) + "".join(bounds) + (", or a schedule" if changes else "")
    return KeyHelp(path, kind, _default(field), field_docstrings(section).get(name, ""))


def _kind(annotation: Any) -> str:
    """Return the name of a type, "section" for one of ours."""
    arguments = typing.get_args(annotation)
    if not section_in(annotation):
        return type_text(annotation)
    if type(None) in arguments:
        return "section | null"
    if typing.get_origin(annotation) is dict:
        return "map of sections"
    return "list of sections" if arguments else "section"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        stated = value.model_dump(exclude_defaults=True)
        return str(stated) if stated else ""
    return value_text(value)


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


# --------------------------------------------------------------------------------------------------


def lines_of(text: str) -> dict[str, int]:
    """Return the line, from 1, of each key that a config's text sets, by the key's path in their order.

    Raises:
        DuplicateKey, yaml.YAMLError, ValueError, RecursionError: as `tree.load_yaml`.
    """
    node = tree.compose(text)
    return {} if node is None else dict(_lines(node, ""))


def _lines(node: yaml.Node, above: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        parts = [(key.value, key, value) for key, value in node.value if key.tag != MERGE]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, key, value in parts:
        path = f"{above}.{name}".lstrip(".")
        yield path, key.start_mark.line + 1
        yield from _lines(value, path)
