"""The names of a module that other rooms use, read from the imports of the whole repository."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN_ROOMS = (
    "algorithms",
    "engines",
    "environments",
    "models",
    "samplers",
    "strategies",
    "tools",
    "trackers",
)


def module_of(path: Path) -> str:
    """Return the dotted name of a file under the repository."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """Return the room of a module: its folder under vlmrl/, its own name at the top, or its folder."""
    parts = module.split(".")
    return parts[1] if parts[0] == "vlmrl" and len(parts) > 1 else parts[0]


def modules() -> dict[str, ast.Module]:
    """Return the trees of all modules of the package that can have `__all__`.

    A plugin's file, whose only public name is its class, is left out.
    """
    files = sorted((ROOT / "vlmrl").rglob("*.py"))
    plugins = {f for room in PLUGIN_ROOMS for f in (ROOT / "vlmrl" / room).glob("*.py")}
    plugins -= {ROOT / "vlmrl" / room / "base.py" for room in PLUGIN_ROOMS}
    kept = [f for f in files if f not in plugins and f.name != "__main__.py"]
    return {module_of(f): ast.parse(f.read_text(encoding="utf-8")) for f in kept}


def used_elsewhere() -> dict[str, set[str]]:
    """Return, for each module, the public names that files of other rooms use."""
    known = set(modules())
    used: dict[str, set[str]] = defaultdict(set)
    for folder in ("vlmrl", "rewards", "datasets", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for module, name in _uses(tree, known):
                if room_of(module_of(path)) != room_of(module) and not name.startswith("_"):
                    used[module].add(name)
    return used


def _uses(tree: ast.Module, known: set[str]) -> list[tuple[str, str]]:
    """Return (module, name) for names that are imported, and for attributes of imported modules."""
    found, local = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    local[alias.asname or alias.name] = whole
                elif node.module in known:
                    found.append((node.module, alias.name))
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(value, ast.Name) and value.id in local and isinstance(node.ctx, ast.Load):
            found.append((local[value.id], node.attr))
    return found


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top level, imports not counted."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        found.update(
            t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)
        )
    return found


def stated(tree: ast.Module) -> list[str] | None:
    """Return `__all__` of a module; None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None
