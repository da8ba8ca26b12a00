"""Conditions on a row, such as `0 < pass_rate < 1` or `kind == 'chart'`: parsed, never evaluated as Python.

A condition has comparisons of columns with numbers, texts, True and False, and `and`, `or`, `not` over
them; nothing else.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from vlmrl.data.files.rows import WHERE, Rows, narrowed, number, word
from vlmrl.errors import UserError

MAX_LENGTH = 1000
"""Most characters of a condition."""
ALLOWED = (
    "comparisons (< <= > >= == !=) of columns and numbers, or of a column and a text, True or False (== "
    "!=), with and, or, not and parentheses, as in \"0 < pass_rate < 1 and kind == 'chart'\""
)
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

_Values = Mapping[str, float | str | bool]
_Truth = Callable[[_Values], bool]
_Number = Callable[[_Values], Any]


class Condition:
    """A condition; `columns` are the names in it, `a.b` being one nested in another."""

    def __init__(self, text: str) -> None:
        """Parse a condition.

        Raises:
            UserError: it has anything but what is allowed; the message quotes it.
        """
        if len(text) > MAX_LENGTH:
            raise UserError(f"expected at most {MAX_LENGTH} characters, got {len(text)}")
        self.text, self._numbers, self._words = (
            text,
            set[str](),
            dict[str, type[str] | type[bool]](),
        )
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _refused(text) from error
        self._holds = self._truth(tree.body)
        if both := sorted(self._numbers & self._words.keys()):
            raise UserError(
                f"column {both[0]!r}: expected numbers or texts to compare with, got both"
            )
        self.columns = tuple(sorted(self._numbers | self._words.keys()))

    def holds(self, row: Mapping[str, object]) -> bool:
        """Return whether it holds of a row.

        Raises:
            UserError: a column of it has no finite number, no text, or is not true or false; the message
                names the column.
        """
        values: dict[str, float | str | bool] = {c: number(row, c) for c in self._numbers}
        return self._holds(values | {c: word(row, c, kind) for c, kind in self._words.items()})

    def _truth(self, node: ast.expr) -> _Truth:
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(value) for value in node.values]
            join = all if isinstance(node.op, ast.And) else any
            return lambda row: join(part(row) for part in parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand)
            return lambda row: not inner(row)
        if isinstance(node, ast.Compare) and (equal := self._equal_word(node)):
            return equal
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            numbers = [self._number(value) for value in (node.left, *node.comparators)]
            compare = [_COMPARISONS[type(op)] for op in node.ops]
            links = list(zip(compare, numbers, numbers[1:], strict=False))
            return lambda row: all(holds(left(row), right(row)) for holds, left, right in links)
        raise _refused(ast.unparse(node))

    def _equal_word(self, node: ast.Compare) -> _Truth | None:
        """Return whether a column is a text, or true or false; None: it is another comparison."""
        pair = (node.left, *node.comparators)
        constants = [each.value for each in pair if isinstance(each, ast.Constant)]
        words = [value for value in constants if isinstance(value, str | bool)]
        names = [name for each in pair if (name := _column(each))]
        if len(words) != 1 or len(names) != 1 or len(pair) != 2:
            return None
        if not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            return None
        kind = bool if isinstance(words[0], bool) else str
        if self._words.setdefault(names[0], kind) is not kind:
            raise UserError(f"column {names[0]!r}: expected texts, or True and False, got both")
        equal = isinstance(node.ops[0], ast.Eq)
        return lambda row: (row[names[0]] == words[0]) == equal

    def _number(self, node: ast.expr) -> _Number:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant):
                inner = self._number(node.operand)
                return lambda row: -inner(row)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value: Any = node.value
            return lambda _: value
        elif name := _column(node):
            self._numbers.add(name)
            return lambda row: row[name]
        raise _refused(ast.unparse(node))


def matching(rows: Rows, condition: Condition, name: str) -> list[int]:
    """Return the positions of the rows that meet a condition; messages call the rows `name`.

    A row that cannot be read is among them: it is refused and counted when it is drawn.

    Raises:
        UserError: a row has no finite number, or no text, in a column; the message names both.
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
