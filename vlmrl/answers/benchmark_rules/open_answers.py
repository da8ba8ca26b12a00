"""Open answers: MMMU's questions without options, MathVista, SLAKE, and R1-V's counts."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

__all__ = [
    "mathvista_reading",
    "mathvista_right",
    "mmmu_open",
    "slake",
    "tagged_count",
    "video_mmmu_open",
]


def mmmu_open(answer: str, right: str | Sequence[str], keys: Sequence[str] = ()) -> bool:
    """Return whether an open answer is right as lmms-eval 0.7.3 judges MMMU (tasks/mmmu/utils.py).

    Tails after "so", "is", "thus" and the like, and all their numbers, rounded to two decimals, are
    candidates; a right text may occur anywhere in one of them. `keys` are more words before a tail.

    Differs from strict: listing several answers pays.
    """
    wanted = [
        one for text in ([right] if isinstance(right, str) else right) for one in _plain(text)
    ]
    tails = _tails(answer, (*_KEYS, *keys))
    said = [*tails, *(number for tail in tails for number in _numbers(tail))]
    for one in (plain for text in said for plain in _plain(text)):
        if isinstance(one, float) and one in wanted:
            return True
        if isinstance(one, str) and any(isinstance(text, str) and text in one for text in wanted):
            return True
    return False


def video_mmmu_open(answer: str, right: str) -> bool:
    """Return whether an open answer is right as lmms-eval judges Video-MMMU (tasks/videommmu/utils.py).

    As `mmmu_open`, with more words before a tail.
    """
    return mmmu_open(answer, right, _VIDEO_KEYS)


def _tails(answer: str, keys: Sequence[str]) -> list[str]:
    """Return the shortest text after a key word of each line; the whole answer if there is none."""
    whole = answer.strip().strip(".").lower()
    lines = whole.split("\n")
    found = []
    for number, line in enumerate(lines):
        last = ("=",) if number == len(lines) - 1 else ()
        shortest = ""
        for tail in (line.split(key)[-1].strip() for key in (*keys, *last) if key in line):
            if not shortest or len(tail) < len(shortest):
                shortest = tail
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            found.append(shortest)
    return found or [whole]


def _numbers(said: str) -> list[str]:
    return [number for pattern in _NUMBERS for number in pattern.findall(said)]


def _plain(said: str) -> list[str | float]:
    """Return a number rounded to two decimals, or the text in lower case, a single letter by a blank."""
    said = said.strip()
    try:
        return [round(float(said.replace(",", "")), 2)]
    except ValueError:
        said = said.lower()
        return [f" {said}", f"{said} "] if len(said) == 1 else [said]


def mathvista_reading(answer: str, options: Sequence[str], answer_type: str) -> str | None:
    """Read an answer as lmms-eval does for MathVista before it asks a judge; None: it asks one.

    Source: tasks/mathvista/mathvista_evals.py. `answer_type` is `integer`, `float`,
    `text` or `list`; `options` are empty for a free form.
    """
    said = answer.strip()
    if options and said in options:
        return said
    kinds = {"integer": int, "float": float}
    if answer_type in kinds:
        try:
            return str(kinds[answer_type](said))
        except ValueError:
            return None
    return None


def mathvista_right(
    reading: str, right: str, options: Sequence[str], answer_type: str, precision: float
) -> bool:
    """Return whether a reading is right as lmms-eval judges MathVista.

    It rounds by `precision` as the row has it: Python takes no float for the number of digits, so where
    that is 1.0 a free answer of type `float` is wrong there whatever it says.
    """
    if options:
        marked = re.search(r"\(([a-zA-Z])\)", reading)
        letter = marked[1].upper() if marked else reading.strip()
        by_letter = dict(zip(string.ascii_uppercase, options, strict=False))
        return by_letter.get(letter, reading).strip() == right.strip()
    if answer_type == "integer":
        reading = str(int(float(reading)))
    elif answer_type == "float":
        if not isinstance(precision, int):
            return False
        reading = str(round(float(reading), precision))
    return reading.strip() == right.strip()


def slake(answer: str, right: str) -> bool:
    """Return whether an answer is right as lmms-eval judges SLAKE (tasks/slake/utils.py).

    Lower case; no brackets with what is in them, no punctuation; synonyms of yes and no. The rule for
    its English questions: full-width marks and Chinese synonyms are left as they are.
    """
    return _slake_plain(answer) == _slake_plain(right)


def _slake_plain(said: str) -> str:
    said = re.sub(r"\([^)]*\)", " ", said.strip().lower())
    said = said.translate(_MARKS)
    said = " ".join(said.split())
    said = "xray" if said == "x ray" else said
    return "yes" if said in _YES else "no" if said in _NO else said


def tagged_count(answer: str) -> int | None:
    """Return the digits in the answer tag as R1-V does (src/eval); without tags, bare digits."""
    match = re.search(r"<answer>\s*(\d+)\s*</answer>", answer)
    if match is None and "<answer>" not in answer:
        match = re.fullmatch(r"\s*(\d+)\s*", answer)
    return int(match[1]) if match else None


_KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_VIDEO_KEYS = (
    "are ", "in total ", "total ", "identify ", "recognize ", "calculated as ", "counted as ",
    "measured as ", "observed as ", "concluded as ", "found to be ", "equals ",
    "determined to be ", "number of ", "value is ", "adds up to ", "have ", "has ",
)  # fmt: skip
_NUMBERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"-?\b\d{1,3}(?:,\d{3})+\b",
        r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
        r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])",
    )
)
_MARKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
_YES, _NO = ("yes", "yeah", "yep", "true"), ("no", "nope", "false")
