"""Arithmetic that is parsed, never evaluated as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

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
_MATH = "sqrt exp log log10 log2 floor ceil sin cos tan atan degrees radians"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in _MATH.split()},
    **{"abs": abs, "round": round, "min": min, "max": max},
}
CONSTANTS = {"pi": math.pi, "e": math.e}


def value(expression: str) -> int | float:
    """Return the value of an expression of + - * / // % **, brackets, pi, e and the usual functions.

    Whole numbers are exact.

    Raises:
        ValueError: it is no arithmetic, or has no finite real value of bearable size.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("this is no arithmetic expression") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"this cannot be computed: {error}") from error


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            result: Any = number
        case ast.Name(id=name) if name in CONSTANTS:
            result = CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            result = -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            result = _value(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            result = _combine(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            result = FUNCTIONS[name](*map(_value, arguments))
        case _:
            raise ValueError("expected numbers, + - * / // % **, brackets and functions like sqrt")
    if isinstance(result, complex) or (isinstance(result, float) and not math.isfinite(result)):
        raise ValueError("it has no finite real value")
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS} bits")
    return result


def _combine(op: ast.operator, left: int | float, right: int | float) -> Any:
    whole = isinstance(left, int) and isinstance(right, int)
    if isinstance(op, ast.Pow) and whole and right * int(left).bit_length() > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS} bits")  # before it is computed
    return BINARY[type(op)](left, right)
