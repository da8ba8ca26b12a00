"""Conditions on the numbers of a row, such as `0 < pass_rate < 1`: parsed, never evaluated as Python.

A condition has comparisons of columns and numbers, and `and`, `or`, `not` over them; nothing else.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from vlmrl.data.files.rows import WHERE, Rows, narrowed, number
from vlmrl.errors import UserError

MAX_LENGTH = 1000
"""Most characters of a condition."""
ALLOWED = (
    "comparisons (< <= > >= == !=) of columns and numbers, with and, or, not and parentheses, "
    "as in '0 < pass_rate < 1 and level >= 2'"
)
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

_Truth = Callable[[Mapping[str, float]], bool]
_Number = Callable[[Mapping[str, float]], float]


class Condition:
    """A condition; `columns` are the names in it, `a.b` being one nested in another."""

    def __init__(self, text: str) -> None:
        """Parse a condition.

        Raises:
            UserError: it has anything but what is allowed; the message quotes it.
        """
        if len(text) > MAX_LENGTH:
            raise UserError(f"expected at most {MAX_LENGTH} characters, got {len(text)}")
        self.text, self._columns = text, set[str]()
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _refused(text) from error
        self._holds = self._truth(tree.body)
        self.columns = tuple(sorted(self._columns))

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether it holds of a row.

        Raises:
            UserError: a column of it has no finite number; the message names the column.
        """
        return self._holds({column: number(row, column) for column in self.columns})

    def _truth(self, node: ast.expr) -> _Truth:
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(value) for value in node.values]
            join = all if isinstance(node.op, ast.And) else any
            return lambda row: join(part(row) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand)
            return lambda row: not inner(row)
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            numbers = [self._number(value) for value in (node.left, *node.comparators)]
            compare = [_COMPARISONS[type(op)] for op in node.ops]
            links = list(zip(compare, numbers, numbers[1:], strict=False))
            return lambda row: all(holds(left(row), right(row)) for holds, left, right in links)
        raise _refused(ast.unparse(node))

    def _number(self, node: ast.expr) -> _Number:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant):
                inner = self._number(node.operand)
                return lambda row: -inner(row)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value: Any = node.value
            return lambda _: value
        elif name := _column(node):
            self._columns.add(name)
            return lambda row: row[name]
        raise _refused(ast.unparse(node))


def matching(rows: Rows, condition: Condition, name: str) -> list[int]:
    """Return the positions of the rows that meet a condition; messages call the rows `name`.

    A row that cannot be read is among them: it is refused and counted when it is drawn.

    Raises:
        UserError: a row has no finite number in a column; the message names both.
    """
    read = narrowed(rows, [column.partition(".")[0] for column in condition.columns])
    positions = []
    for position in range(len(read)):
        try:
            row = read[position]
        except UserError:
            positions.append(position)
            continue
        try:
            if condition.holds(row):
                positions.append(position)
        except UserError as error:
            raise UserError(f"{row.get(WHERE, f'{name} row {position}')}: {error}") from error
    return positions


def _column(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (above := _column(node.value)):
        return f"{above}.{node.attr}"
    return ""


def _refused(text: str) -> UserError:
    return UserError(f"expected {ALLOWED}, got {text!r}")
