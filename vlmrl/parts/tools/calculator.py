"""Arithmetic as a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.answers import arithmetic
from vlmrl.interaction.tool import Refused, Tool, View

MAX_CHARS = 500


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
            value = arithmetic.value(expression)
        except ValueError as error:
            raise Refused(str(error)) from error
        return str(value) if isinstance(value, int) else f"{value:.12g}"
