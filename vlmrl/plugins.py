"""Find a plugin by name: one file is one plugin, and the file name is the name in the config.

A plugin file `box_iou.py` holds a frozen dataclass `BoxIou` (the file name in CamelCase) whose
fields are its options. Rooms hold shared parts too: `_x.py`, and a file without the class of its
own name, are no plugins. Outside the repository a plugin is named `path/to/file.py:Name` or
`package.module:Name`; an installed package names its own by entry points of the group `vlmrl.parts`,
`kind.name = package.name:Name`, and the variable VLMRL_PARTS names those of files. No decorator, no table.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import os
import re
import sys
import threading
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic

from vlmrl.errors import UserError

KINDS = {
    "verifier": "vlmrl.rewards",
    "card": "vlmrl.datasets",
    "layout": "vlmrl.parts.layouts",
    "benchmark": "vlmrl.benchmarks",
    "truth": "vlmrl.truths",
    "family": "vlmrl.parts.families",
    "engine": "vlmrl.engines",
    "algorithm": "vlmrl.parts.algorithms",
    "tracker": "vlmrl.parts.trackers",
    "sampler": "vlmrl.parts.samplers",
    "strategy": "vlmrl.parts.strategies",
    "tool": "vlmrl.parts.tools",
    "environment": "vlmrl.parts.environments",
    "weight": "vlmrl.parts.weights",
}


USER_MODULE = "vlmrl_user_"
"""Beginning of the module names of files outside of the repository."""
GROUP = "vlmrl.parts"
"""Group of the entry points by which an installed package names its parts, each `kind.name`."""
VARIABLE = "VLMRL_PARTS"
"""Environment variable that names parts of files: `kind.name=path/to/name.py:Name`, separated by commas."""
_loading = threading.RLock()
"""Held while a user's file is imported: another thread would be given a module that is half there."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a plugin: its type, and its default unless it is `required`."""

    type: Any
    default: Any
    required: bool


@dataclasses.dataclass(frozen=True)
class AddedPart:
    """A part that is not shipped but has a name: where it is, `module:Name`, and who names it."""

    reference: str
    origin: str


def names(kind: str) -> list[str]:
    """Return the names of all plugins of a kind, shipped or of installed packages, sorted. Imports none.

    Raises:
        UserError: see `added`.
    """
    return sorted([*shipped(kind), *added(kind)])


def shipped(kind: str) -> list[str]:
    """Return the names of all shipped plugins of a kind, sorted. Imports none of them."""
    return sorted({file.stem for file in _files(kind) if class_name(file.stem) in _classes(file)})


def added(kind: str) -> dict[str, AddedPart]:
    """Return by name the plugins of a kind that installed packages and VLMRL_PARTS name. Imports none.

    Raises:
        UserError: two have a name, one has a shipped name, or a name is not that of the part's file.
    """
    parts: dict[str, AddedPart] = {}
    for key, part in (*_stated_parts(os.environ.get(VARIABLE, "")), *_entries(tuple(sys.path))):
        of, _, name = key.partition(".")
        entry = f"{part.origin}: part {key} = {part.reference}"
        if of not in KINDS:
            raise UserError(f"{entry}: expected kind.name, the kind one of {', '.join(KINDS)}")
        if of != kind:
            continue
        if _stem(part.reference) != name:
            raise UserError(f"{entry}: expected the name of its file, {_stem(part.reference)!r}")
        if name in shipped(kind):
            raise UserError(
                f"{entry}: vlmrl ships a {kind} of this name; rename the file and the part"
            )
        if name in parts:
            raise UserError(f"{entry}: {parts[name].origin} has a {kind} of this name as well")
        parts[name] = part
    return parts


def reference(kind: str, name: str) -> str:
    """Return where a plugin is, `module:Name` or `path/to/file.py:Name`. Imports nothing.

    Raises:
        UserError: no such plugin, or its file lacks its class; the message suggests the nearest name.
    """
    if ":" in name:
        return name
    if name.endswith(".py"):
        raise UserError(f"{kind} {name!r}: say which of its parts, as in '{name}:Name'")
    file = next((file for file in _files(kind) if file.stem == name), None)
    if file and class_name(name) in _classes(file):
        return f"{KINDS[kind]}.{name}:{class_name(name)}"
    if part := added(kind).get(name):
        return part.reference
    if file:
        raise UserError(
            f"{kind} {name!r}: {file.parent.name}/{file.name}: expected a class named "
            f"{class_name(name)}, got {', '.join(_classes(file)) or 'no class'}"
        )
    raise UserError(f"no {kind} is named {name!r}{nearest(name, names(kind))}")


def check(kind: str, name: str) -> None:
    """Refuse an unknown name; a plugin that has a name is not imported for this.

    Raises:
        UserError: no such plugin, or its file lacks its class; the message suggests the nearest name.
    """
    if ":" in name:
        load(kind, name)
    else:
        reference(kind, name)


def load(kind: str, name: str) -> Any:
    """Return the class or function that `name` stands for.

    Raises:
        UserError: no such plugin, file or attribute; the message suggests the nearest name.
    """
    source, _, attribute = reference(kind, name).rpartition(":")
    if source == f"{KINDS.get(kind)}.{name}":
        return getattr(importlib.import_module(source), attribute)
    from_file = source.endswith(".py")
    module = _module_from_file(kind, source) if from_file else _module_by_name(kind, source)
    if not hasattr(module, attribute):
        public = sorted(n for n in vars(module) if not n.startswith("_"))
        raise UserError(f"{kind}: {source} has no {attribute!r}{nearest(attribute, public)}")
    return getattr(module, attribute)


def name_of(part: type) -> str:
    """Return the name of a part's class: that of its file."""
    module = part.__module__.rpartition(".")[2]
    return module.removeprefix(USER_MODULE)[:-13] if module.startswith(USER_MODULE) else module


def build(kind: str, name: str, options: Mapping[str, object] | None = None) -> Any:
    """Return an instance of plugin `name` with validated options; of a plain function, the function.

    Raises:
        UserError: an unknown or missing option, a wrong type, or a value the plugin itself refuses;
            the message names the plugin, the option and what is allowed.
    """
    plugin = load(kind, name)
    values = dict(options or {})
    if not inspect.isclass(plugin):
        return functools.partial(plugin, **values) if values else plugin
    known = options_of(plugin)
    for key in values:
        if key not in known:
            raise UserError(f"{kind} {name!r} has no option {key!r}{nearest(key, list(known))}")
    for key, option in known.items():
        if option.required and key not in values:
            raise UserError(f"{kind} {name!r}: option {key!r} is required")
    where = f"{kind} {name!r}"
    checked = {
        key: _check_value(where, key, known[key].type, value) for key, value in values.items()
    }
    try:
        return plugin(**checked)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def options_of(plugin: type) -> dict[str, Option]:
    """Return the options of a plugin class by name.

    Raises:
        UserError: the class is no dataclass, or an annotation cannot be resolved.
    """
    if not dataclasses.is_dataclass(plugin):
        raise UserError(
            f"{plugin.__qualname__}: expected a dataclass, whose fields are its options"
        )
    try:
        types = typing.get_type_hints(plugin, include_extras=True)
    except NameError as error:
        raise UserError(
            f"{plugin.__qualname__}: the type of an option is unknown: {error}"
        ) from error
    return {
        field.name: Option(types[field.name], *_default(field))
        for field in dataclasses.fields(plugin)
        if field.init
    }


def split_of(name: str) -> tuple[str, str]:
    """Return a part and the split that follows it: `refcoco:testB`, `path/own.py:Own:test`; "" for none."""
    part, _, split = name.partition(":")
    if part.endswith(".py") or "." in part:
        attribute, _, split = split.partition(":")
        part = f"{part}:{attribute}" if attribute else part
    return part, split


def label_of(name: str) -> str:
    """Return what a part, and perhaps its split, is called in folders and metrics: its file's name."""
    part, split = split_of(name)
    label = _stem(part) if ":" in part else part
    return f"{label}:{split}" if split else label


def stated(kind: str, variable: str) -> dict[str, Any]:
    """Return by name the literal to which shipped plugins of a kind set a class variable. Imports none.

    Plugins that leave the variable to their base are left out.

    Raises:
        ValueError: a value is no literal, so that it cannot be read without an import.
    """
    literals = {}
    for file in _files(kind):
        text, name = file.read_text(encoding="utf-8"), class_name(file.stem)
        if f"    {variable}: ClassVar" in text:
            parts = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
            for node in (node for part in parts if part.name == name for node in part.body):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == variable:
                    literals[file.stem] = ast.literal_eval(node.value or "None")
    return dict(sorted(literals.items()))


def class_name(name: str) -> str:
    """Return a name in CamelCase: `box_iou` -> `BoxIou`, `qwen2_5_vl` -> `Qwen25Vl`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def nearest(word: str, known: Sequence[str], listed: bool = True) -> str:
    """Return the end of an error message: `; did you mean 'x'?`, or what exists, if it is to be `listed`."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if close:
        swapped = [name for name in close if sorted(name) == sorted(word)]  # the likeliest mistake
        return f"; did you mean {(swapped or close)[0]!r}?"
    return f"; there are: {', '.join(known)}" if known and listed else ""


def user_files(pickled: bytes) -> tuple[str, ...]:
    """Return the files outside of the repository from which the pickled parts are.

    Another process imports them with `import_files` before it reads the parts, and no other files: one of
    the user's engines may take seconds to import.
    """
    loaded = [m for name, m in [*sys.modules.items()] if name.startswith(USER_MODULE)]
    return tuple(str(module.__file__) for module in loaded if module.__name__.encode() in pickled)


def import_files(files: Sequence[str]) -> None:
    """Import files of parts, as `load` does.

    Raises:
        UserError: there is no such file, or it cannot be imported.
    """
    for file in files:
        _module_from_file("part", file)


def _stated_parts(text: str) -> list[tuple[str, AddedPart]]:
    parts = []
    for entry in filter(None, map(str.strip, text.split(","))):
        key, sign, where = entry.partition("=")
        if not sign or ":" not in where:
            raise UserError(f"{VARIABLE}: expected kind.name=path/to/file.py:Name, got {entry!r}")
        parts.append((key.strip(), AddedPart(where.strip(), VARIABLE)))
    return parts


@functools.cache
def _entries(path: tuple[str, ...]) -> list[tuple[str, AddedPart]]:
    """Return the entry points of the packages on `sys.path`; read once, for it takes some milliseconds."""
    entries = importlib.metadata.entry_points(group=GROUP)
    return sorted(
        {(e.name, AddedPart(e.value, e.dist.name if e.dist else "a package")) for e in entries},
        key=str,
    )


def _stem(reference: str) -> str:
    """Return the name of the file of a part."""
    source = reference.rpartition(":")[0]
    return Path(source).stem if source.endswith(".py") else source.rpartition(".")[2]


def _files(kind: str) -> list[Path]:
    room = importlib.import_module(KINDS[kind])
    return [file for folder in room.__path__ for file in Path(folder).glob("[!_]*.py")]


def _classes(file: Path) -> list[str]:
    # By reading the source, so that listing the names imports nothing.
    return re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)


def _default(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    if field.default is not dataclasses.MISSING:
        return field.default, False
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory(), False
    return None, True


def _check_value(where: str, key: str, type_: Any, value: Any) -> Any:
    problem = None
    try:
        checked = pydantic.TypeAdapter(type_).validate_python(value)
        infinite = isinstance(checked, float) and not math.isfinite(checked)
        if infinite or (isinstance(value, bool) and type_ in (int, float)):
            problem = "Input should be a finite number"
    except pydantic.ValidationError as error:
        problem = error.errors()[0]["msg"]
    if problem:
        raise UserError(f"{where}, option {key!r}: {problem} (got {value!r})")
    return checked


def _module_from_file(kind: str, place: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{kind} {place!r}: there is no such file")
    # One module name per file, so that two user files called rewards.py can coexist, and the same
    # file imports once.
    unique = f"{USER_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    with _loading:
        if unique in sys.modules:
            return sys.modules[unique]
        spec = importlib.util.spec_from_file_location(unique, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever the file raises is the user's to see
            del sys.modules[unique]
            raise UserError(f"{kind} {place!r} cannot be imported: {_brief(error)}") from error
        return module


def _module_by_name(kind: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:  # as above
        raise UserError(f"{kind} {place!r} cannot be imported: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
