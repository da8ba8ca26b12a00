"""What the strings below the fields of a class say: read from its source when somebody asks."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap


@functools.cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the string below each field of a class and its bases, by the field's name."""
    if cls is object:
        return {}
    described: dict[str, str] = {}
    for base in reversed(cls.__bases__):
        described |= field_docstrings(base)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in itertools.pairwise(tree.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            described[field.target.id] = inspect.cleandoc(str(below.value.value))
    return described
