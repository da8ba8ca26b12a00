"""Counts and ratings: CountBench, PixMo-Count, TallyQA, image quality."""

from __future__ import annotations

import re

import numpy as np

# --------------------------------------------------------------------------------------------------
# Numbers: VSI-Bench's mean relative accuracy, and what Video-R1 and HumanOmniV2 compare.


_LEVELS = np.linspace(0.5, 0.95, 10)
_R1_LEVELS = (0.5 + 0.05 * np.arange(10)).astype(np.float32)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBER_WORDS = {
    **{word: number for number, word in enumerate(_UNITS)},
    **{word: 20 + 10 * number for number, word in enumerate(_TENS)},
    "hundred": 100,
    "thousand": 1000,
}


_MOST = 10**300
"""About the largest number that a float can be."""


def vsi_number(answer: str) -> float | None:
    """Return the first number, in digits or in words: lmms-eval 0.7.3 on VSI-Bench.

    Source: tasks/vsibench/utils.py (extract_number).

    Differs from strict: "one of the 3 chairs" says 1, and of several numbers the first counts.
    """
    reply = answer.strip().lower()
    digits, words = _NUMBER.search(reply), list(re.finditer("[a-z]+", reply))
    first = next((at for at, word in enumerate(words) if word[0] in _NUMBER_WORDS), None)
    if digits and (first is None or digits.start() < words[first].start()):
        return float(digits[0])
    if first is None:
        return None
    total = current = 0
    for word in words[first:]:
        number = _NUMBER_WORDS.get(word[0])
        if number is None and word[0] != "and":
            break
        if number == 100:
            current = max(current, 1) * 100
        elif number == 1000:
            total, current = total + max(current, 1) * 1000, 0
        else:
            current += number or 0
        if max(total, current) > _MOST:  # an error there
            return None
    return float(total + current)


def vsi_mean_relative_accuracy(stated: float, right: float) -> float:
    """Return the share of 0.5, 0.55 ... 0.95 for which |stated - right| / right <= 1 - level.

    Source: VSI-Bench, arXiv 2412.14171; lmms-eval tasks/vsibench/utils.py.
    """
    return float((abs(stated - right) / right <= 1 - _LEVELS).mean())


def r1_number(answer: str) -> float | None:
    """Return the whole answer as a number, commas removed: Video-R1, HumanOmniV2.

    Source: Video-R1 src/eval_bench.py; HumanOmniV2 eval/eval_humanomniv2.py (normalize_number).
    """
    try:
        return float(answer.replace(",", ""))
    except ValueError:
        return None


def r1_mean_relative_accuracy(stated: float, right: float) -> float:
    """Return the mean relative accuracy in single precision, an error of exactly 1 - level not counted.

    Source: Video-R1 src/eval_bench.py; HumanOmniV2 eval/eval_humanomniv2.py.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.float32(right)
        away = np.abs(np.float32(stated) - wanted) / (np.abs(wanted) + np.float32(1e-8))
        return float((away < 1 - _R1_LEVELS).astype(np.float32).mean())


# --------------------------------------------------------------------------------------------------
# Counts and ratings: CountBench, PixMo-Count, TallyQA, image quality.


_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
_NUMERALS = {"none": "0"} | {word: str(number) for number, word in enumerate(_WORDS)}


def count_word(answer: str, right: int | str) -> bool:
    """Return whether the whole answer is the count: lmms-eval on CountBench (tasks/countbench).

    A word from none and zero to twenty stands for its number; anything else must be equal.
    """
    return _numeral(answer) == _numeral(str(right))


def count_first(answer: str, right: int | str) -> bool:
    """Return whether the answer's first digits are the count: lmms-eval on PixMo-Count.

    Source: tasks/pixmo_count/utils.py. Differs from strict: "3, not 5" is right for 3.
    """
    return _first_digits(answer) == _first_digits(str(right))


def count_to_twenty(answer: str) -> int | None:
    """Return the first number from 0 to 20, digits or word: VLMEvalKit on TallyQA.

    Source: dataset/utils/tallyqa.py. Differs from strict: "3.5" says 3, "3 or 4" too.
    """
    match = _TO_TWENTY.search(answer.lower())
    if match is None:
        return None
    return int(match[0]) if match[0].isdigit() else _WORDS.index(match[0])


def tagged_rating(completion: str) -> float | None:
    """Return the first rating in the first answer tags: Q-Insight (qinsight_multi_task.py at 08308fd).

    Differs from strict: what is around the key `rating` need not be JSON, and a sign is not read.
    """
    answer = re.search(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    match = re.search(r'"rating"\s*:\s*([\d.]+)', answer[1].strip()) if answer else None
    try:
        return float(match[1]) if match else None
    except ValueError:  # such as 3.5.1
        return None


def _numeral(stated: str) -> str:
    stated = stated.strip().lower()
    return _NUMERALS.get(stated, stated)


def _first_digits(words: str) -> str:
    match = re.search(r"\d+", words)
    return match[0] if match else words.strip()


_TO_TWENTY = re.compile(rf"\b([0-9]|1[0-9]|20|{'|'.join(_WORDS)})\b")
