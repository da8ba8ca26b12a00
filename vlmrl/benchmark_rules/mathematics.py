"""Mathematics: the last box of an answer, and values that agree to two decimals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vlmrl.answers import arithmetic

MAX_CHARS = 300
"""Longest text that is computed."""
_FLAGS = ("the final answer is", "the answer is", "the correct answer is", "the answer should be")
_LONE_LETTERS = {f"{left}{c}{right}": c for c in "abcde" for left, right in ("()", "{}")}
_GONE = ("\\text", "\\mbox", "\\left", "\\right", "^{\\circ}", "^\\circ")
_UNITS = ("{m}^3", "m^3", "{units}", "units", "{km}", "km")


def mathvision_right(answer: str, right: str, options: Sequence[str]) -> bool:
    """Return whether an answer is the right letter, the right option's text, or a value equal to either.

    `right` is a letter where there are options. Source: lmms-eval tasks/mathvision/utils.py
    (mathvision_process_results), eval_utils.py.

    Differs from the harness: values are computed by `answers.arithmetic`, not run as Python code, so
    an expression beyond fractions, roots, powers and functions equals nothing but itself. Differs from
    strict: "I doubt that the answer is B" is B.
    """
    stated = mathvision_reading(answer)
    of_option = options[ord(right) - ord("A")] if options else ""
    return _is_equal(right, stated) or _is_equal(of_option, stated)


def mathvision_reading(answer: str) -> str:
    """Return what the rule takes for the answer: of a last box, of a phrase, or the whole text."""
    text = answer.strip()
    for c in "ABCDE":
        if text.endswith((f" {c}.", f" ({c}).")) or text.startswith((f"{c}\n", f"({c})\n")):
            text = c
    if is_number(last := text.split("is ")[-1].rstrip(".")):
        text = last
    if "oxed{" not in text:
        for flag in _FLAGS:
            for phrase in (flag, flag.replace("the", "The")):
                before, text = text, text.split(phrase)[-1].strip()
                if phrase in before:
                    text = text.split("\n")[0].split(". ")[0]
    elif text.count("oxed{") > 1:
        text = "\\boxed{" + text.split("oxed{")[-1]
    text = _math_answer(text)
    for marked, letter in _LONE_LETTERS.items():
        text = text.replace(marked, letter)
    return text.rstrip(".").lstrip(":").strip()


def _math_answer(text: str) -> str:
    """Return the last box, in lower case and without what LaTeX and units add (find_math_answer)."""
    text = text.lower().replace("{}", "")
    boxes = re.findall(r"oxed{(.*)}", text, flags=re.DOTALL)
    text = boxes[-1] if boxes else text
    if "}" in text and ("{" not in text or text.find("}") < text.find("{")):
        text = text.split("}")[0]
    text = text.split("=")[-1].split("\\approx")[-1]
    text = text.replace(" ", "").replace("\\,", "").replace("∞", "\\infty")
    text = text.replace("+\\infty", "\\infty").replace("\\\\", "\\").replace("\n", "")
    text = text.replace("bmatrix", "pmatrix")
    for part in (*_GONE, *_UNITS):
        text = text.replace(part, "")
    return _stripped(text)


def _stripped(text: str) -> str:
    """Return LaTeX without layout (_strip_string)."""
    text = text.replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for part in ("\\$", "$", "\\%"):
        text = text.replace(part, "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    for sign in ("=", "\\approx"):
        if text.count(sign) == 1:
            text = text.split(sign)[-1]
    if "\\sqrt" in text:
        text = re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text)
    if "sqrt" in text:
        text = _braced_fractions(text)
    if text == "0.5":
        text = "\\frac{1}{2}"
    whole = re.fullmatch(r"(-?\d+)/(-?\d+)", text)
    return f"\\frac{{{int(whole[1])}}}{{{int(whole[2])}}}" if whole else text


def _braced_fractions(text: str) -> str:
    """Put the parts of fractions in braces (_fix_fracs)."""
    return re.sub(r"\\frac(?!\{)(.)(?!\{)(.)", r"\\frac{\1}{\2}", text)


def is_number(text: str) -> bool:
    """Return whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_equal(right: str, stated: str) -> bool:
    """Return whether two texts are the same, or their values to two decimals (is_equal)."""
    right, stated = right.lower(), stated.lower()
    if not right.replace(" ", "") or not stated.replace(" ", ""):
        return False
    if right.strip() == stated.strip():
        return True
    values = [_values(text) for text in (right, stated)]
    return None not in values and values[0] == values[1]


def _values(text: str) -> tuple[float, ...] | None:
    """Return the value of an expression, or those of a tuple, to two decimals; None: there is none."""
    text = text.strip()
    is_tuple = len(text) > 2 and text[0] + text[-1] in ("()", "[]") and "," in text
    parts = text[1:-1].split(",") if is_tuple else [text]
    values = [_value(part) for part in parts]
    kept = tuple(value for value in values if value is not None)
    return kept if len(kept) == len(values) else None


def _value(latex: str) -> float | None:
    """Return the value of LaTeX arithmetic to two decimals; None: it is none."""
    if len(latex) > MAX_CHARS:
        return None
    text = re.sub(r"\^(?:\\circ|\{\\circ\})", "", latex).replace("^", "**")
    text = re.sub(r"\\(?:cdot|times)", "*", text).replace("\\div", "/").replace(":", "/")
    text = re.sub(r"\\sqrt\[([^\[\]{}]+)\]\{([^{}]*)\}", r"((\2)**(1/(\1)))", text)
    before = ""
    while text != before:  # from the inside out
        before = text
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text)
        text = re.sub(r"\*\*\{([^{}]*)\}", r"**(\1)", text)
    text = re.sub(r"\\(pi|sin|cos|tan|log|ln|exp)\b", r"\1", text).replace("ln(", "log(")
    text = re.sub(r"(?<=[\d)])\s*(?=[a-z(])", "*", text)  # 2\pi, 3\sqrt{2}
    try:
        return round(float(arithmetic.value(text)), 2)
    except (ValueError, OverflowError):
        return None
