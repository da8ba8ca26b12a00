"""What a part's source file says of it, read without importing it: many parts import torch.

Reads what a dataclass would: fields in the order of the bases, class variables and fields that are
not arguments left out. `plugins.options_of` is the authority; a test holds both to the same answer.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vlmrl import plugins
from vlmrl.errors import UserError


@dataclass(frozen=True)
class OptionSource:
    """An option as its file has it; `default` is None if the option is required."""

    type: str
    default: str | None
    description: str


@dataclass(frozen=True)
class PartSource:
    """A part as its file has it."""

    docstring: str
    options: dict[str, OptionSource]


@dataclass(frozen=True, eq=False)
class _Module:
    """A parsed file: its classes and assignments by name, and where imported names come from."""

    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]
    imported: dict[str, tuple[str, str]]


def read_part(kind: str, name: str) -> PartSource:
    """Read a shipped part, or that of an installed package.

    Raises:
        UserError: no such part, or its file lacks its class; the message suggests the nearest name.
    """
    source, _, attribute = plugins.reference(kind, name).rpartition(":")
    module = _parse(source)
    if attribute not in module.classes:
        raise UserError(f"{kind} {name!r}: {source} has no class {attribute!r}")
    part = module.classes[attribute]
    options: dict[str, OptionSource] = {}
    for home, cls in _lineage(module, part):
        # A field that a subclass gives another default keeps its place, and its docstring if it has no other.
        for key, option in _fields(home, cls):
            kept = options[key].description if key in options else ""
            options[key] = OptionSource(option.type, option.default, option.description or kept)
    return PartSource(ast.get_docstring(part) or "", options)


def missing_options(kind: str, name: str) -> list[str]:
    """Return the options of a part that have no default."""
    options = read_part(kind, name).options
    return [key for key, option in options.items() if option.default is None]


@functools.cache
def _parse(source: str) -> _Module:
    """Parse a file by its path or by the name of its module."""
    tree = ast.parse(_file_of(source).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vlmrl")
        for alias in node.names
        if node.module
    }
    return _Module(classes, values, imported)


def _file_of(source: str) -> Path:
    if source.endswith(".py"):
        file = Path(source).expanduser()
    else:
        try:
            spec = importlib.util.find_spec(source)
        except ModuleNotFoundError:  # of a package above it
            spec = None
        file = Path(spec.origin if spec and spec.origin else source)
    if not file.is_file():
        raise UserError(f"{source}: expected a file of Python with a part, got none")
    return file


def _lineage(module: _Module, cls: ast.ClassDef) -> Iterator[tuple[_Module, ast.ClassDef]]:
    """Yield a class of ours and its bases, bases first."""
    for base in reversed(cls.bases):
        if isinstance(base, ast.Name) and (definition := _home(module, base.id)):
            home, name = definition
            if name in home.classes:
                yield from _lineage(home, home.classes[name])
    yield module, cls


def _home(module: _Module, name: str) -> tuple[_Module, str] | None:
    """Return the module of ours that defines a name (`x`, or `y.x` of a module y), with the name there."""
    if name in module.classes or name in module.values:
        return module, name
    module_name, dot, rest = name.partition(".")
    origin, original = module.imported.get(module_name, ("", ""))
    if not origin:
        return None
    return _home(_parse(f"{origin}.{original}"), rest) if dot else _home(_parse(origin), original)


def _fields(module: _Module, cls: ast.ClassDef) -> Iterator[tuple[str, OptionSource]]:
    if not any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list):
        return  # annotations of a base that is no dataclass are no options
    for node, below in itertools.zip_longest(cls.body, cls.body[1:]):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(node.annotation):
            continue
        if isinstance(node.value, ast.Call) and any(
            k.arg == "init" and ast.unparse(k.value) == "False" for k in node.value.keywords
        ):
            continue  # `field(..., init=False)` is no argument
        described = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            described = inspect.cleandoc(str(below.value.value))
        type_, default = _type(module, node.annotation), _default(module, node.value)
        yield node.target.id, OptionSource(type_, default, described)


def _type(module: _Module, node: ast.expr) -> str:
    """Return a type as one writes it: `float`, `str | None`, `'a' | 'b'` for a Literal."""
    if isinstance(node, ast.BinOp):
        return f"{_type(module, node.left)} | {_type(module, node.right)}"
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if (generic := ast.unparse(node.value)) == "Literal":
            return " | ".join(map(ast.unparse, inner))
        return f"{generic}[{', '.join(_type(module, each) for each in inner)}]"
    if isinstance(node, ast.Name | ast.Attribute):
        home, name = _home(module, ast.unparse(node)) or (module, "")
        if name in home.values:
            return _type(home, home.values[name])
    return ast.unparse(node)


def _default(module: _Module, node: ast.expr | None) -> str | None:
    if node is None:
        return None
    if isinstance(node, ast.Name) and (definition := _home(module, node.id)):
        home, name = definition
        return _default(home, home.values[name]) if name in home.values else node.id
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("field"):
        arguments = {k.arg: k.value for k in node.keywords}
        if "default" in arguments:
            return _default(module, arguments["default"])
        made = arguments.get("default_factory")
        if isinstance(made, ast.Lambda):
            return ast.unparse(made.body)
        return {"dict": "{}", "list": "[]"}.get(ast.unparse(made), "...") if made else None
    return ast.unparse(node)
