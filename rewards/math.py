r"""Decide whether the answer is mathematically equal to the truth.

math-verify reads a part of a text and passes over the rest: it takes `7|8` and `7 → 8` for one of
the two numbers, adds numbers that are next to each other (`3 4` is 7, and so is `3(4)`), drops every
unit and takes `7\%` for 7 as well as 0.07. An answer is therefore read here first, as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.answers import claims, parsing
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws

MAX_CHARS = 1000
"""Longest answer that is read as one expression."""
_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|csc|log|exp|arcsin|arccos|arctan|sinh|cosh|tanh|min|max|mod"
_PROSE = re.compile(
    rf"(?<![A-Za-z\\])(?:(?!(?:{_FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{3,}}"
    r"|(?i:is|or|of|in|to|at|be|by|it|an|as|so|we|if|on|no))(?![A-Za-z])"
)
_SPACE = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\(?:left|right)(?![a-zA-Z])|(?<!~)~(?!~)")
_SIGNS = str.maketrans({"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/"})
_WRAPPED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}"))
_NAMED = re.compile(r"^[A-Za-z]\s*=\s*(?=\$|\\boxed)")
_DELIMITER = re.compile(r"\$|\\[()\[\]]|\\boxed")

_SYMBOLS = (
    r"mm|cm|dm|km|m|in|ft|yd|mi|mg|kg|g|lb|oz|ms|s|sec|min|h|hr|ml|mL|L|dl|V|A|W|kW|J|kJ|N|Pa|kPa"
    r"|Hz|kHz|MHz|K|°C|°F|mol|mph"
)
_POWER = r"(?:\^\{?-?[1-9]\}?|²|³)?"
_UNIT = re.compile(
    rf"(?<=[0-9}})\]%$])(?:\s*\\(?:text|mathrm)\{{([^{{}}]{{1,100}})\}}"
    rf"|\s*\b((?:{_SYMBOLS}){_POWER}(?:/(?:{_SYMBOLS}){_POWER})?)(?![A-Za-z])"
    rf"|\s+([A-Za-z]{{3,30}})){_POWER}[\s.]*$"
)
_UNIT_MARKS = re.compile(r"\\(?:text|mathrm)|[{}]|\^\{?-?[1-9]|[²³]")
_PERCENT = re.compile(r"\\?%\s*$")
_MIXED = re.compile(r"(?<![\d./^])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")

_PLAIN = re.compile(r"[0-9A-Za-z\s+*/^(){}\[\]=<>≤≥!.π°-]")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_COMMANDS = frozenset(
    "frac dfrac tfrac cfrac sqrt cdot times div binom dbinom pm mp pi infty circ degree sin cos tan"
    " cot sec csc log ln lg exp arcsin arccos arctan sinh cosh tanh le leq ge geq lt gt ne neq in"
    " alpha beta gamma delta epsilon varepsilon theta lambda mu nu xi rho sigma tau phi varphi chi"
    " psi omega mathrm mathbf text textbf lfloor rfloor lceil rceil".split()
)
_FRACTION = re.compile(r"\\(?:[dtc]?frac|d?binom)\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)")
_ONE_NUMBER = re.compile(r"(?<![\^_A-Za-z\]])[({\[]\s*([-+]?[\d.\ue000-\ue002]+)\s*[)}\]]")
_STEP = re.compile(
    r"(?<=[\d)}])\s*[-+](?=\s*[\d(\\.])|[-+]\s*[-+]"
    r"|(?<=\d)\s*(?:\*|\\times|\\cdot|\\div)(?=\s*-?\d)(?!\s*10\s*\^)"
    r"|(?<!\d)(?!10\D)\d+\s*\^\s*\{?\s*-?\d|\d\s*!"
)
"""What is left to compute between numbers: `3+4`, `2^3`, but neither `3\\times 10^4` nor `2\\sqrt{3}`."""
_QUOTIENT = re.compile(
    r"(?<![\d.])(\d{1,20})\s*/\s*(\d{1,20})(?![\d.])|\\[dtc]?frac\{(\d{1,20})\}\{(\d{1,20})\}"
)
_COMPARED = re.compile(r"[<>≤≥]|\\(?:leq?|geq?|lt|gt|neq?|pm|mp)\b")
_UNFINISHED = re.compile(r"[-+*/^=]\s*$|\d(?:st|nd|rd|th)\b")
_VARIABLE = re.compile(r"[A-Za-z]")
_PROPER, _OTHER, _WHOLE = "\ue000", "\ue001", "\ue002"
"""Stand for a proper fraction, any other fraction, and a mixed number while joints are looked for."""
_JOINED = re.compile(
    r"[\d.\ue000-\ue002]\s+\.?[\d\ue000-\ue002]"
    r"|[\ue000-\ue002]\s*[\d\ue000-\ue002]|\d\s*[\ue000\ue001]|\.\d*\."
)


@dataclass(frozen=True, slots=True)
class Expression:
    r"""An expression without its delimiters, percent sign and unit.

    Example: `$5\text{ cm}$` is Expression("5", unit="cm").
    """

    text: str
    unit: str = ""
    percent: bool = False
    doubtful: str = ""
    """The words around it, if they deny it, leave it open or make another number of it (`7 million`)."""


@dataclass(frozen=True)
class Math(AnswerVerifier):
    r"""Score 1 if math-verify finds the answer equal to the truth, else 0.

    The answer is one expression, plain, between dollars or in `\boxed{}`, with words around it and
    a unit after it if it has one. Symbolic work can run for ever (`9^{9^{9^9}}`), so calls run in
    the pool with a deadline. Needs `pip install "vlmrl-perception[math]"`.

    Used by: V-Triune (mathverify), VLM-R1 math, VL-Cogito, Observe-R1, and everyone who copies R1-V.

    Refuses: an answer in the thought, several expressions (in words, as in `7|8`, or next to each
    other as in `3 4`, which math-verify adds up), an equation between numbers, numbers that are still
    to be computed (`3+4` for 7), a value that is denied or left open (`not 7`, `7 or so`), another unit
    than the truth's, signs that math-verify passes over, over 1000 characters.

    Source: huggingface/Math-Verify.
    Differs: only the answer span is read, and all of it, where R1-V parses the whole completion; a
    percent sign has one meaning (`percent`), where math-verify takes `7\%` for both 7 and 0.07.

    Raises:
        ValueError: the truth cannot be parsed: such a row should be dropped at load.
        UserError: math-verify is not installed.

    Example: truth text `("1/2",)`; `0.5`, `\boxed{\frac{1}{2}}` and `x = 1/2` score 1.
    """

    needs: ClassVar[tuple[str, ...]] = ("text", "number")
    slow: ClassVar[bool] = True
    laws: ClassVar[Laws] = Laws(truth=("number",), junk="ANSWER, 7777")

    percent: bool = False
    """Whether a percent sign divides by 100; otherwise it is passed over, as in `number`."""

    def warm_up(self) -> None:
        """Import math-verify and build its parser."""
        self._parse(Expression("1"))

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Parse the answer and compare it with every accepted form."""
        if len(answer) > MAX_CHARS:
            return Verdict(0.0, note=f"answer longer than {MAX_CHARS} characters")
        stated = read_expression(answer)
        if stated is None:
            return Verdict(0.0, answer=answer, note="not one expression")
        parsed = self._parse(stated)
        accepted = truth.text or (f"{truth.number:.17g}",)
        if any(self._is_equal(stated, parsed, form) for form in accepted):
            return Verdict(1.0, answer=answer)
        return Verdict(0.0, answer=answer, note="" if parsed else "not an expression")

    def _is_equal(self, stated: Expression, parsed: list[object], form: str) -> bool:
        right = read_expression(form) or Expression(form)
        gold = self._parse(right)
        if not gold:
            raise ValueError(f"the truth {form!r} is not an expression that math-verify can parse")
        if not parsed or not _is_comparable(stated, right):
            return False
        return bool(_math_verify().verify(gold, parsed, timeout_seconds=None))

    def _parse(self, expression: Expression) -> list[object]:
        text = expression.text
        if expression.percent and self.percent:
            text = f"({text})/100"
        # The pool's deadline ends what hangs; math-verify's own timers need the main thread.
        marked = text if _DELIMITER.search(text) else f"${text}$"
        parsed: list[object] = _math_verify().parse(marked, parsing_timeout=None)
        return parsed


def _math_verify() -> Any:
    """Import the module, which has no types."""
    try:
        import math_verify
    except ImportError:
        raise UserError("math needs math-verify: pip install 'vlmrl-perception[math]'") from None
    return math_verify


def read_expression(answer: str) -> Expression | None:
    """Return the one expression of an answer; None if there are several, or none.

    Words around it, one pair of delimiters, a unit and a percent sign are taken off. `40 = 42`
    states several numbers, of which math-verify would read the last.
    """
    text = _SPACE.sub(" ", answer.translate(_SIGNS)).replace(r"\$", "").strip()
    text = _NAMED.sub("", text)
    whole = _unwrap(text)
    text, unit = _split_unit(whole)
    unit_text = whole[len(text) :]
    pieces = [p for p in _PROSE.split(text) if any(map(str.isalnum, p))]
    if len(pieces) != 1:
        return None
    around = f"{text.replace(pieces[0].strip(), claims.VALUE, 1)} {_UNIT_MARKS.sub(' ', unit_text)}"
    around = " ".join(parsing.take_words(around, set()).split())
    doubtful = claims.doubt(around) or claims.changes(around)
    text, late_unit = _split_unit(_unwrap(pieces[0].strip(" \t\n.,:;")))
    percent = _PERCENT.search(text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", _PERCENT.sub("", text)).replace("**", "^").strip()
    left, equals, _ = text.rpartition("=")
    if (
        not text
        or _DELIMITER.search(text)
        or _UNFINISHED.search(text)
        or (equals and any(map(str.isdigit, left)))
    ):
        return None
    return Expression(text, unit or late_unit, percent is not None, around if doubtful else "")


def _is_comparable(stated: Expression, right: Expression) -> bool:
    """Return whether an answer can be a spelling of the truth, of one value like it.

    It cannot if both state a unit and these differ, if its words take it back, if it leaves more to
    compute than the truth or compares where that does not, if it has numbers next to each other, or if
    it has a sign that is no plain arithmetic and that the truth does not have (a comma, a bar, an arrow):
    such signs separate values, and math-verify passes over many of them.
    """
    if stated.unit and right.unit and stated.unit != right.unit:
        return False
    if stated.doubtful and stated.doubtful != right.doubtful:
        return False
    if _special(stated.text) - _special(right.text):
        return False
    compares = _COMPARED.search(stated.text) and not _COMPARED.search(right.text)
    if compares or _steps(stated.text) > _steps(right.text):
        return False
    return not _is_joined(stated.text) or _is_joined(right.text)


def _unwrap(text: str) -> str:
    """Take off delimiters around the whole text, however often."""
    for before, after in _WRAPPED * 2:
        inner = text[len(before) : len(text) - len(after)]
        wrapped = text.startswith(before) and text.endswith(after)
        if wrapped and len(text) > len(before + after) and _is_balanced(inner):
            text = inner.strip()
    return text


def _is_balanced(text: str) -> bool:
    depth = 0
    for mark in re.findall(r"[{}]", text):
        depth += 1 if mark == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def _split_unit(text: str) -> tuple[str, str]:
    """Split `5 cm^2` into the expression and its unit; a unit follows a digit or a bracket."""
    match = _UNIT.search(text)
    if not match:
        return text, ""
    unit = "".join(match[0].replace("\\text", "").replace("\\mathrm", "").split()).strip("{}.")
    words = match[3] or (match[1] or "").strip()
    if words.isalpha() and len(words) > 2:
        unit = words.lower().removesuffix("s")
    return text[: match.start()], unit.replace("{", "").replace("}", "")


def _special(text: str) -> set[str]:
    """Return the signs and commands of an expression that are not plain arithmetic."""
    bare = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    bare = re.sub(r"\\log\s*_", r"\\log ", bare)
    commands = set(_COMMAND.findall(bare)) - _COMMANDS
    return commands | {sign for sign in _COMMAND.sub("", bare) if not _PLAIN.match(sign)}


def _steps(text: str) -> int:
    """Return how much is left to compute in an expression without variables; of others that is a form."""
    if _VARIABLE.search(_COMMAND.sub("", text)):
        return 0
    quotients = ((int(m[1] or m[3]), int(m[2] or m[4])) for m in _QUOTIENT.finditer(text))
    whole = sum(top % bottom == 0 for top, bottom in quotients if bottom)
    return len(_STEP.findall(text)) + whole


def _is_joined(text: str) -> bool:
    """Return whether two numbers are next to each other without an operator between them."""
    text = re.sub(r"\\log\s*_\s*(?:\{\w+\}|\w)", r"\\log", text)
    before = ""
    while text != before:
        before = text
        text = _FRACTION.sub(_mark, text)
    text = re.sub(rf"(?<![\d./^])\d+\s*{_PROPER}", _WHOLE, text)
    before = ""
    while text != before:
        before = text
        text = _ONE_NUMBER.sub(r" \1 ", text)
    return bool(_JOINED.search(text))


def _mark(fraction: re.Match[str]) -> str:
    top, bottom = (part.strip("{} ") for part in fraction.groups())
    proper = top.isdecimal() and bottom.isdecimal() and int(top) < int(bottom)
    return _PROPER if proper else _OTHER
