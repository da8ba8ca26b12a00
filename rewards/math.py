"""Whether the answer is mathematically equal to the truth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.errors import UserError
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier

MAX_CHARS = 1000
"""Longest answer that is read as one expression."""
_UNIT = re.compile(r"\\(?:text|mathrm)\{[^{}]{0,100}\}")
_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|csc|log|exp|arcsin|arccos|arctan|sinh|cosh|tanh|min|max|mod"
_PROSE = re.compile(
    rf"(?<![A-Za-z\\])(?:(?!(?:{_FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{3,}}"
    r"|(?i:is|or|of|in|to|at|be|by|it|an|as|so|we|if|on))(?![A-Za-z])"
)


@dataclass(frozen=True)
class Math(AnswerVerifier):
    r"""1 if math-verify finds the answer span equal to the truth, else 0.

    The answer is one expression, plain, between dollars or in `\boxed{}`. Symbolic work can run for
    ever (`9^{9^{9^9}}`), therefore calls run in the pool with a deadline. Needs `pip install
    "vlmrl[math]"`.

    Used by: V-Triune (mathverify), VLM-R1 math, VL-Cogito, Observe-R1, and by all that copy R1-V.

    Refuses: an answer in the thought, several expressions (also among words), an equation between
    numbers, over 1000 characters.

    Source: huggingface/Math-Verify.
    Differs: only the answer span is read, and all of it, where R1-V parses the whole completion.

    Raises:
        ValueError: the truth cannot be parsed: such a row should be dropped at load.
        UserError: math-verify is not installed.

    Example: truth text `("1/2",)`; `0.5`, `\boxed{\frac{1}{2}}` and `x = 1/2` score 1.
    """

    needs: ClassVar[tuple[str, ...]] = ("text", "number")
    slow: ClassVar[bool] = True

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Parse and compare with every accepted form."""
        try:
            import math_verify
        except ImportError:
            raise UserError("math needs math-verify: pip install 'vlmrl[math]'") from None
        accepted = truth.text or (f"{truth.number:.17g}",)
        if len(answer) > MAX_CHARS or answer.count("\\boxed") > 1 or answer.count("$") > 2:
            return Verdict(0.0, note="not one expression")
        # The pool's deadline ends what hangs; math-verify's own timers need the main thread.
        expression = _expression(answer)
        if expression is None:
            return Verdict(0.0, answer=answer, note="several expressions among words")
        stated = math_verify.parse(_delimited(expression), parsing_timeout=None)
        for form in accepted:
            gold = math_verify.parse(_delimited(form), parsing_timeout=None)
            if not gold:
                raise ValueError(f"the truth {form!r} is no expression that math-verify can parse")
            equal = stated and math_verify.verify(gold, stated, timeout_seconds=None)
            if equal and ("=" in form or not _claims(answer)):
                return Verdict(1.0, answer=answer)
        return Verdict(0.0, answer=answer, note="" if stated else "not an expression")


def _claims(answer: str) -> bool:
    """True for `40 = 42`, of which math-verify would read the last number only."""
    left, equals, _ = answer.rpartition("=")
    return bool(equals) and any(character.isdigit() for character in left)


def _expression(answer: str) -> str | None:
    """The one piece of an answer that is not prose; None if there are several.

    Without this a text such as `not 0 but 1` is read as a product of letters, which is 0.
    """
    pieces = [p for p in _PROSE.split(_UNIT.sub(" ", answer)) if any(map(str.isalnum, p))]
    return pieces[0] if len(pieces) == 1 else None


def _delimited(expression: str) -> str:
    marked = "$" in expression or "\\boxed" in expression or "\\(" in expression
    return expression if marked else f"${expression}$"
