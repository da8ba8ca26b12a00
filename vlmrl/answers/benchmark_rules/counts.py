"""Counts and ratings: CountBench, PixMo-Count, TallyQA, image quality."""

from __future__ import annotations

import re

__all__ = ["count_first", "count_to_twenty", "count_word", "tagged_rating"]

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
    found = re.search(r'"rating"\s*:\s*([\d.]+)', answer[1].strip()) if answer else None
    try:
        return float(found[1]) if found else None
    except ValueError:  # such as 3.5.1
        return None


def _numeral(said: str) -> str:
    said = said.strip().lower()
    return _NUMERALS.get(said, said)


def _first_digits(said: str) -> str:
    match = re.search(r"\d+", said)
    return match[0] if match else said.strip()


_TO_TWENTY = re.compile(rf"\b([0-9]|1[0-9]|20|{'|'.join(_WORDS)})\b")
