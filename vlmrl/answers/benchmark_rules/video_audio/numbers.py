"""Numbers: VSI-Bench's mean relative accuracy, and what Video-R1 and HumanOmniV2 compare."""

from __future__ import annotations

import re

import numpy as np

__all__ = ["r1_mean_relative_accuracy", "r1_number", "vsi_mean_relative_accuracy", "vsi_number"]

_LEVELS = np.linspace(0.5, 0.95, 10)
_R1_LEVELS = (0.5 + 0.05 * np.arange(10)).astype(np.float32)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORDS = {
    **{word: number for number, word in enumerate(_UNITS)},
    **{word: 20 + 10 * number for number, word in enumerate(_TENS)},
    "hundred": 100,
    "thousand": 1000,
}


def vsi_number(answer: str) -> float | None:
    """Return the first number, in digits or in words: lmms-eval 0.7.3 on VSI-Bench.

    Source: tasks/vsibench/utils.py (extract_number).

    Differs from strict: "one of the 3 chairs" says 1, and of several numbers the first counts.
    """
    said = answer.strip().lower()
    digits, words = _NUMBER.search(said), list(re.finditer("[a-z]+", said))
    first = next((at for at, word in enumerate(words) if word[0] in _WORDS), None)
    if digits and (first is None or digits.start() < words[first].start()):
        return float(digits[0])
    if first is None:
        return None
    total = current = 0
    for word in words[first:]:
        number = _WORDS.get(word[0])
        if number is None and word[0] != "and":
            break
        if number == 100:
            current = max(current, 1) * 100
        elif number == 1000:
            total, current = total + max(current, 1) * 1000, 0
        else:
            current += number or 0
    return float(total + current)


def vsi_mean_relative_accuracy(said: float, right: float) -> float:
    """Return the share of 0.5, 0.55 ... 0.95 for which |said - right| / right <= 1 - level.

    Source: VSI-Bench, arXiv 2412.14171; lmms-eval tasks/vsibench/utils.py.
    """
    return float((abs(said - right) / right <= 1 - _LEVELS).mean())


def r1_number(answer: str) -> float | None:
    """Return the whole answer as a number, commas removed: Video-R1, HumanOmniV2.

    Source: Video-R1 src/eval_bench.py; HumanOmniV2 eval/eval_humanomniv2.py (normalize_number).
    """
    try:
        return float(answer.replace(",", ""))
    except ValueError:
        return None


def r1_mean_relative_accuracy(said: float, right: float) -> float:
    """Return the mean relative accuracy in single precision, an error of exactly 1 - level not counted.

    Source: Video-R1 src/eval_bench.py; HumanOmniV2 eval/eval_humanomniv2.py.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.float32(right)
        away = np.abs(np.float32(said) - wanted) / (np.abs(wanted) + np.float32(1e-8))
        return float((away < 1 - _R1_LEVELS).astype(np.float32).mean())
