"""Find a plugin by name: one file is one plugin, and the file name is the name in the config.

A plugin file `box_iou.py` holds a frozen dataclass `BoxIou` (the file name in CamelCase); its fields are
its options. Files that start with `_`, and `base.py`, are not plugins. Outside the repository a plugin
is named `path/to/file.py:Name` or `package.module:Name`. No decorator, no table to edit.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic

from vlmrl.errors import UserError

KINDS = {
    "verifier": "vlmrl.rewards",
    "card": "vlmrl.datasets",
    "family": "vlmrl.models",
    "engine": "vlmrl.engines",
    "algorithm": "vlmrl.algorithms",
}
# Rooms that hold shared parts beside their plugins say which files are plugins by this marker: a file
# is a plugin if and only if it defines the CamelCase class of its own name. It is found by reading the
# source, so that listing the names imports nothing.


def names(kind: str) -> list[str]:
    """The names of all shipped plugins of a kind, sorted. Imports none of them."""
    found = []
    for folder in _folders(kind):
        for file in folder.glob("*.py"):
            if f"class {class_name(file.stem)}" in file.read_text(encoding="utf-8"):
                found.append(file.stem)
    return sorted(found)


def load(kind: str, name: str) -> Any:
    """The class or function that `name` stands for.

    Raises:
        UserError: no such plugin, file or attribute; the message suggests the nearest name.
    """
    if ":" in name:
        return _load_outside(kind, name)
    if name not in (known := names(kind)):
        raise UserError(f"no {kind} is named {name!r}{nearest(name, known)}")
    module = importlib.import_module(f"{KINDS[kind]}.{name}")
    return getattr(module, class_name(name))


def build(kind: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """An instance of plugin `name` with validated options.

    Raises:
        UserError: unknown option or wrong type; the message names the plugin, key and nearest option.
    """
    plugin = load(kind, name)
    options = dict(options or {})
    if not inspect.isclass(plugin):
        if options:
            return functools.partial(plugin, **options)
        return plugin
    known = option_fields(plugin)
    for key in options:
        if key not in known:
            raise UserError(f"{kind} {name!r} has no option {key!r}{nearest(key, list(known))}")
    checked = {
        key: _checked(kind, name, key, known[key].type, value) for key, value in options.items()
    }
    try:
        return plugin(**checked)
    except TypeError as error:
        raise UserError(f"{kind} {name!r}: {error}") from error
    except ValueError as error:
        raise UserError(f"{kind} {name!r}: {error}") from error


def option_fields(plugin: type) -> dict[str, dataclasses.Field[Any]]:
    """The options of a plugin class by name, types resolved."""
    if not dataclasses.is_dataclass(plugin):
        raise UserError(f"{plugin.__qualname__} is no dataclass, so it has no options to set")
    hints = _hints(plugin)
    fields = {}
    for f in dataclasses.fields(plugin):
        if f.init:
            f.type = hints.get(f.name, f.type)
            fields[f.name] = f
    return fields


def class_name(name: str) -> str:
    """`box_iou` -> `BoxIou`, `qwen2_5_vl` -> `Qwen25Vl`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?` or the list of what exists, to end an error message."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(known)}" if known else ""


def _folders(kind: str) -> list[Path]:
    package = importlib.import_module(KINDS[kind])
    return [Path(p) for p in package.__path__]


def _hints(plugin: type) -> dict[str, Any]:
    import typing

    return typing.get_type_hints(plugin)


def _checked(kind: str, name: str, key: str, type_: Any, value: Any) -> Any:
    try:
        return _adapter(type_).validate_python(value)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        raise UserError(
            f"{kind} {name!r}, option {key!r}: {problem['msg']} (found {value!r})"
        ) from error


@functools.cache
def _adapter(type_: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(type_)


def _load_outside(kind: str, name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    module = _module_from_file(kind, place) if place.endswith(".py") else _module_by_name(kind, place)
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UserError(f"{kind} {name!r}: {place} has no {attribute!r}{nearest(attribute, public)}") from None


def _module_from_file(kind: str, place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{kind} {place!r}: there is no such file")
    # One module name per file, so that two user files called rewards.py can coexist, and the same file
    # imports once (a pool's worker processes find it again by this name).
    unique = f"vlmrl_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises is the user's to see
        del sys.modules[unique]
        raise UserError(f"{kind} {place!r} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module_by_name(kind: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise UserError(f"{kind}: cannot import {place!r}: {error}") from error
