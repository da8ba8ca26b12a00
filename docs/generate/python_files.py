"""Python files as pages read them: parsed once, never run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@functools.cache
def parse(file: Path) -> ast.Module:
    """Return the tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def assigned(file: Path) -> Mapping[str, ast.expr]:
    """Return the values that a module gives to its names."""
    found = {}
    for node in parse(file).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else []
        targets += node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found |= {one.id: node.value for one in targets if isinstance(one, ast.Name)}
    return found


def read_table(file: Path, name: str) -> Any:
    """Return the literal that a module gives to a name.

    Raises:
        ValueError: there is no such name, or it is no literal.
    """
    if name not in assigned(file):
        raise ValueError(f"{file}: expected a table {name}")
    return ast.literal_eval(assigned(file)[name])
