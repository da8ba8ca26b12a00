"""Read YAML as configs have it: the scalars of YAML 1.2, and no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["DuplicateKey", "load_yaml"]


class DuplicateKey(Exception):
    """A mapping sets a key twice; the message names the key and both lines."""


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of YAML 1.2 only: `no` and `1:30` stay text, `1e-4` is a number.

    Source: the core schema, https://yaml.org/spec/1.2.2/#1032-tag-resolution; its octal and
    hexadecimal integers stay text too, and tags of dates, sets and binary data are refused.
    """

    yaml_implicit_resolvers = {}
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or re.search(":(null|bool|int|float|str|seq|map)$", tag)
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                earlier = first[key.value]
                raise DuplicateKey(
                    f"line {line}: key {key.value!r} is already set in line {earlier}"
                )
            first[key.value] = line
        return node


_DIGITS = r"(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))"
for _tag, _pattern, _first in [
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", rf"[-+]?{_DIGITS}(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
]:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML document.

    Raises:
        DuplicateKey: a mapping sets a key twice.
        yaml.YAMLError, ValueError, RecursionError: not valid YAML.
    """
    return _Loader(text).get_single_data()
