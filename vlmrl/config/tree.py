"""The plain values of a config: find the file, read its YAML, follow `extends`, lay over, apply `key=value`.

Nothing here knows what a key means, but for the places where a bare string stands for a mapping
(`algorithm: grpo` is `algorithm: {name: grpo}`). No function changes what it is given.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.system.bounded_yaml import BoundedLoader

# --------------------------------------------------------------------------------------------------
# Read YAML as configs have it: the scalars of YAML 1.2, and no key twice.


class DuplicateKey(Exception):
    """A mapping sets a key twice; the message names the key and both lines."""


class _Loader(BoundedLoader):
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


def compose(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML document, which know their lines; raises what `load_yaml` does."""
    return _Loader(text).get_single_node()


# --------------------------------------------------------------------------------------------------
# From a name to plain values: find the file, follow `extends`, apply `key=value`.


CURES = {
    r"'\\t'": "; indent with spaces, not with tabs",
    r"(?:got|found|character) '[^][{},]'|not allowed here": "; put a text with `?` or `: ` in it in quotes",
}
"""What PyYAML says of a document that is none -> what helps."""
SHORT = {
    "algorithm": "name",
    "engine": "name",
    "resume": "start",
    "rewards": "verifier",
    "train": "card",
    "sources": "card",
    "validation": "card",
}
"""Key -> the field that a bare string under this key (or in its list) stands for."""


MAX_CONFIGS = 10
"""Configs of a folder that a message names."""


def read(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a config file, all that it extends, and the overrides; UserError if one cannot be read.

    Of several configs that a file extends, later ones are laid over earlier ones, and the file over all.

    An override without `=` is another config: those are laid over the first in their order, as `extends`
    lays a file over its base, and keys come last wherever they stand.
    """
    return _lay_over(_read_file(find(name), ()), overrides)


def read_text(text: str, path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a text as if the file `path` held it, which need not be there; else as `read`."""
    return _lay_over(_extend(_mapping(text, path), path, ()), overrides)


def _lay_over(tree: Mapping[str, object], overrides: Sequence[str]) -> dict[str, Any]:
    keys = [text for text in overrides if "=" in text]
    laid_over = [_read_file(_find_over(text), ()) for text in overrides if "=" not in text]
    return functools.reduce(override, keys, dict(functools.reduce(merge, laid_over, tree)))


def _find_over(name: str) -> Path:
    try:
        return find(name)
    except UserError as error:
        raise UserError(
            f"override {name!r}: write key=value, e.g. run.steps=50, or name a config to lay over: {error}"
        ) from error


def shipped() -> dict[str, Path]:
    """List the shipped configs by name; one in a folder is `folder/name`."""
    import vlmrl.configs  # has no __init__.py, so it may be spread over several folders

    folders = [Path(p) for p in vlmrl.configs.__path__]
    files = [(f.relative_to(folder), f) for folder in folders for f in folder.rglob("*.yaml")]
    return {name.with_suffix("").as_posix(): file for name, file in sorted(files)}


def find(name: str, base: Path | None = None) -> Path:
    """Find the file that a name or path means; `base` is the folder of the config that extends it."""
    for path in [base / name, base / f"{name}.yaml"] if base else [Path(name)]:
        if path.is_file():
            return path.resolve()
    known = shipped()
    if name in known:
        return known[name].resolve()
    raise UserError(f"no config file and no shipped config is named {name!r}{_hint(name, known)}")


def _hint(name: str, known: Mapping[str, Path]) -> str:
    """Return the end of a message: the config nearest to a name, of its folder and of the shipped ones."""
    folder = Path(name).parent
    names = sorted(str(folder / file.name) for file in folder.glob("*.y*ml"))
    if close := nearest(name, [*names, *known], listed=False):
        return close
    there = f"; {folder} holds {', '.join(names[:MAX_CONFIGS])}" if names else ""
    return f"{there}; `vlmrl list configs` lists the {len(known)} shipped ones"


def merge(base: object, over: object, key: str = "") -> Any:
    """`over` on top of `base`: mappings key by key, everything else replaced.

    A plugin of another name does not inherit the options of the one it replaces.
    """
    if not isinstance(over, Mapping):
        return over
    base = _long(base, key)
    if not isinstance(base, Mapping):
        return over
    if key in SHORT and over.get(SHORT[key], base.get(SHORT[key])) != base.get(SHORT[key]):
        return over
    return {**base, **{k: merge(base[k], v, k) if k in base else v for k, v in over.items()}}


def override(tree: Mapping[str, object], text: str) -> dict[str, Any]:
    """`tree` with one `a.b.c=value` applied; the value is YAML, an empty one is null.

    An entry of a list is named by its position or by its own name, e.g. `rewards.box_iou.weight=2`.

    Raises:
        UserError: not of this form, not YAML, or the path leads through a single value.
    """
    key, equals, raw = text.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"override {text!r}: write key=value, e.g. run.steps=50")
    value = _parse(raw, f"override {text!r}")
    return _with(tree, key.split("."), value, f"override {text!r}")


def pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` texts, as for `-o key=value` on the command line."""
    return functools.reduce(override, texts, dict[str, Any]())


def named(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a part written as `NAME` or `NAME(key=value, ...)`.

    Values are YAML; a comma within brackets, braces or quotes belongs to its value.

    Raises:
        UserError: not of this form.
    """
    match = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text, re.DOTALL)
    if match is None:
        raise UserError(f"{text!r}: expected NAME or NAME(key=value, ...)")
    options = [option.strip() for option in split_at_commas(match[2] or "")]
    return match[1].strip(), pairs([option for option in options if option])


def split_at_commas(text: str) -> list[str]:
    """Split a text at the commas outside of brackets, braces and quotes."""
    pieces, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += (char in "[{(") - (char in ")}]")
        if char == "," and not depth and not quote:
            pieces.append("")
        else:
            pieces[-1] += char
    return pieces


def _with(node: object, path: list[str], value: object, where: str, key: str = "") -> Any:
    if not path:
        return value
    node = {} if node is None else _long(node, key)
    part, rest = path[0], path[1:]
    if isinstance(node, Mapping):
        return {**node, part: _with(node.get(part), rest, value, where, part)}
    if isinstance(node, list):
        i = _index(node, part, where)
        return [*node[:i], _with(node[i], rest, value, where, key), *node[i + 1 :]]
    raise UserError(f"{where}: {key} is the single value {node!r}, it has no {part!r}")


def _index(entries: list[Any], part: str, where: str) -> int:
    if part.isdecimal() and int(part) < len(entries):
        return int(part)
    named = [
        str(next((e[k] for k in ("name", "card", "verifier") if e.get(k)), ""))
        if isinstance(e, Mapping)
        else str(e)
        for e in entries
    ]
    if part in named:
        return named.index(part)
    raise UserError(f"{where}: no entry {part!r}{nearest(part, named)}")


def _long(value: object, key: str) -> Any:
    return {SHORT[key]: value} if key in SHORT and isinstance(value, str) else value


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; UserError if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return _mapping(text, path)


def _mapping(text: str, path: Path) -> dict[str, Any]:
    tree = _parse(text, str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping, got {type(tree).__name__}")
    return tree


def _read_file(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    if path in below:
        raise UserError(f"{path}: extends itself through {' -> '.join(p.name for p in below)}")
    return _extend(read_mapping(path), path, below)


def _extend(tree: dict[str, Any], path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    parents = tree.pop("extends", None) or []
    parents = parents if isinstance(parents, list) else [parents]
    try:
        paths = [find(str(parent), path.parent) for parent in parents]
    except UserError as error:
        raise UserError(f"{path}: extends: {error}") from error
    bases = [_read_file(base, (*below, path)) for base in paths]
    return dict(functools.reduce(merge, [*bases, tree]))


def _parse(text: str, where: str) -> Any:
    try:
        return load_yaml(text)
    except DuplicateKey as error:
        raise UserError(f"{where}, {error}") from error
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{where}{_position(error)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


def _position(error: yaml.MarkedYAMLError) -> str:
    """Return the end of a message: the line that is no YAML, why, and what helps where that is known."""
    why = error.problem or error.context
    mark = error.problem_mark or error.context_mark
    if mark is None or mark.buffer is None:
        return f": not valid YAML: {why}"
    line = mark.buffer.split("\n")[mark.line].rstrip("\0").strip()
    cure = next((text for pattern, text in CURES.items() if re.search(pattern, str(why))), "")
    return f", line {mark.line + 1}: not valid YAML: {why}{line and f': {line:.200}'}{cure}"
