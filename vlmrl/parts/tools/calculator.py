"""Arithmetic that is parsed, never evaluated as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from vlmrl.interaction.tool import Refused, Tool, View

MAX_CHARS = 500
MAX_BITS = 4096
"""Bits of the largest whole number that a step may give."""
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "log10", "log2", "floor")},
    **{
        name: getattr(math, name)
        for name in ("ceil", "sin", "cos", "tan", "atan", "degrees", "radians")
    },
    **{"abs": abs, "round": round, "min": min, "max": max},
}
CONSTANTS = {"pi": math.pi, "e": math.e}


@dataclass(frozen=True)
class Calculator(Tool):
    """Compute an arithmetic expression such as `(3 + 4) * sqrt(2) ** 2`.

    It knows + - * / // % **, brackets, pi, e and the usual functions. Whole numbers are exact.
    """

    def __call__(self, view: View, expression: Annotated[str, "the expression"]) -> str:
        """Return the value."""
        if len(expression) > MAX_CHARS:
            raise Refused(f"expected at most {MAX_CHARS} characters, got {len(expression)}")
        try:
            value = _value(ast.parse(expression.strip(), mode="eval").body)
            return str(value) if isinstance(value, int) else f"{value:.12g}"
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise Refused("this is no arithmetic expression") from error
        except (ArithmeticError, ValueError, TypeError) as error:
            raise Refused(f"this cannot be computed: {error}") from error


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value: Any = number
        case ast.Name(id=name) if name in CONSTANTS:
            value = CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            value = -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            value = _value(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            value = _combine(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in FUNCTIONS:
            value = FUNCTIONS[name](*map(_value, given))
        case _:
            raise Refused("expected numbers, + - * / // % **, brackets and functions like sqrt")
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("it has no finite real value")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS} bits")
    return value


def _combine(op: ast.operator, left: int | float, right: int | float) -> Any:
    whole = isinstance(left, int) and isinstance(right, int)
    if isinstance(op, ast.Pow) and whole and right * int(left).bit_length() > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS} bits")  # before it is computed
    return BINARY[type(op)](left, right)
