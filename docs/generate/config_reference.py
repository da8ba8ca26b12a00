"""The page of every config key: type, default and description, from the pydantic models."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from tables import code, escape, header, row, type_text, value_text

from vlmrl.config import Config, Section
from vlmrl.config.section import MayChange, section_in

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
INTRODUCTION = """# Config

Every key of a config, with its type, default and meaning. Any of them can be set on the command line:
`vlmrl train mine.yaml rollout.group_size=16`. An unknown key is an error that names the nearest valid
one. A file may begin with `extends: NAME`, the path or shipped name of the config to start from.
`vlmrl config show CONFIG` prints all values as they will run; `vlmrl config schema` prints this page as
a [JSON schema](config.schema.json) for editors. [Schedules and stages](../train/schedules.md) change
values during a run.
"""


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for path, section in dict(_sections("", Config)).items():
        lines += [f"## `{path}`" if path else "## Top level", ""]
        lines += [escape(" ".join((section.__doc__ or "").split())), ""] if path else []
        lines += header("key", "type", "default", "description")
        lines += [_row(path, name, field) for name, field in section.model_fields.items()]
        lines.append("")
    return "\n".join(lines)


def _sections(path: str, section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield every section with its path; one that lists hold only where it is first named."""
    queue, listed = [(path, section)], set()
    while queue:
        path, section = queue.pop(0)
        yield path, section
        inner = []
        for name, field in section.model_fields.items():
            found = section_in(field.annotation)
            if found and found not in listed:
                inner.append((_join(path, name) + _key(field.annotation), found))
                listed |= {found} if "list" in str(field.annotation) else set()
        queue = inner + queue


def _key(annotation: Any) -> str:
    """Return what follows the path of a map of sections: the name that the user gives each."""
    return ".NAME" if typing.get_origin(annotation) is dict else ""


def _row(path: str, name: str, field: FieldInfo) -> str:
    description = escape(field.description or "")
    return row(code(_join(path, name)), code(_type(field)), _default(field), description)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type(field: FieldInfo) -> str:
    """Return a field's type as one writes it, with its bounds: `int, ≥ 1, or a schedule`."""
    bounds = [
        f", {sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in BOUNDS.items()
        if getattr(rule, key, None) is not None
    ]
    changes = any(isinstance(rule, MayChange) for rule in field.metadata)
    return _name(field.annotation) + "".join(bounds) + (", or a schedule" if changes else "")


def _name(annotation: Any) -> str:
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
        given = value.model_dump(exclude_defaults=True)
        return code(str(given)) if given else ""
    return code(value_text(value))
