"""Text in images: the rules of OCRBench v2, task by task.

Source: lmms-eval 0.7.3, tasks/ocrbench_v2 (utils.py, vqa_metric.py, IoUscore_metric.py and
TEDS_metric.py). Answers come stripped, as its framework strips them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence

from vlmrl.answers import text

MAX_CHARS, MAX_PAIRED = 100_000, 2_000
"""Longest answer that is read as an object, and as pairs; the harness reads any."""
Corners = tuple[int, int, int, int]


def spelt_letter(answer: str, right: str) -> bool:
    """Return whether the letters of an answer, all else taken out, are the right one.

    Differs from strict: "(B)" and "B 2" are right, and "Answer: B" is wrong.
    """
    return "".join(char for char in answer if char.isalpha()) == right


def contained(answer: str, accepted: Sequence[str], case: bool = False) -> float:
    """Return 1 if an accepted text of at most four words occurs, else the ANLS of longer ones from 0.5.

    `case` says whether capitals count.

    Differs from strict: `1` is in `10`, and a list of all answers is right.
    """

    def plain(reading: str) -> str:
        reading = reading if case else reading.lower()
        return reading.strip().replace("\n", " ")

    return _contained(answer, accepted, plain, lambda right: len(right.split()) < 5)


def contained_chinese(answer: str, accepted: Sequence[str]) -> float:
    """Return as `contained` does, without blanks; short is a text of at most four parts between commas."""

    def plain(reading: str) -> str:
        return reading.lower().strip().replace("\n", " ").replace(" ", "")

    return _contained(answer, accepted, plain, lambda right: len(right.split(",")) < 4)


def _contained(
    answer: str,
    accepted: Sequence[str],
    plain: Callable[[str], str],
    is_short: Callable[[str], bool],
) -> float:
    stated, best = plain(answer), 0.0
    for right in map(plain, accepted):
        if is_short(right):
            best = max(best, float(right in stated))
            continue
        longest = max(len(stated), len(right))
        closeness = 1 - text.edit_distance(stated, right) / longest
        best = max(best, closeness if closeness >= 0.5 else 0.0)
    return best


def formula(answer: str, accepted: Sequence[str], chinese: bool = False) -> float:
    r"""Return whether an accepted formula occurs, blanks aside; in Chinese rows without `\text{...}`."""

    def plain(reading: str) -> str:
        reading = re.sub(r"\\text\{([^{}]*)\}", r"\1", reading) if chinese else reading
        return reading.strip().replace("\n", " ").replace(" ", "")

    return float(any(plain(right) in plain(answer) for right in accepted))


def counted(answer: str, accepted: Sequence[str], by: str) -> float:
    """Return whether a count occurs (`exact match`), or how near the first number is (`regression`).

    Nearness is 1 - difference / truth, from 0.5 on, not included. Any other `by` scores 0 there.
    """
    if by == "exact match":
        return float(any(right.lower().strip().replace("\n", " ") in answer for right in accepted))
    first = re.search(r"\d{1,4000}", answer) if by == "regression" else None
    if first is None or not int(first[0]):
        return 0.0
    counts = [int(right) for right in accepted]
    shares = [1 - abs(int(first[0]) - count) / count for count in counts if count > 0]
    return max((share for share in shares if share > 0.5), default=0.0)


def letters_listed(answer: str, right: str) -> bool:
    """Return whether the right letters occur, side by side or parted by one of several marks."""
    marks = ("", ".", ". ", ",", ", ", "、", ";", "; ", " ", "和")
    return any(mark.join(right) in answer for mark in marks)


def stated_object(answer: str) -> dict[str, str]:
    """Return the object that an answer is, or has in a code fence: JSON, Python, or pairs of `key: value`."""
    fenced = re.search(r"```(?:python|json)?\n(.*?)\n```", answer, re.DOTALL | re.IGNORECASE)
    content = fenced[1] if fenced else answer.strip()
    value = _parsed(content) if len(content) <= MAX_CHARS else None
    if value is None:
        pairs = re.findall(_PAIR, re.sub(r"\s{9,}", " " * 8, content[:MAX_PAIRED]))
        value = {key.strip(): stated.strip() for key, stated in pairs}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return {}
    return {key.strip(): str(stated).strip() for key, stated in value.items()}


def _parsed(content: str) -> object:
    """Return what a text is in JSON, or in Python; None if it is neither."""
    try:
        value: object = json.loads(content)
        return {} if value is None else value
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(content)
        return {} if value is None else value
    except (ValueError, SyntaxError):
        return None
    except (TypeError, RecursionError, MemoryError):  # ends the harness's run
        return {}


def fields_f1(answer: str, right: Mapping[str, Sequence[str]]) -> float:
    """Return the share of fields that are right, of those stated and those that should be.

    `right` lists the accepted values of each; case and blanks do not count.
    """
    stated = {key: _bare(value) for key, value in stated_object(answer).items()}
    keys = stated.keys() | right.keys()
    hits = sum(value in map(_bare, right.get(key, ())) for key, value in stated.items())
    return hits / len(keys) if keys else 0.0


def _bare(value: str) -> str:
    return value.lower().strip().replace("\n", " ").replace(" ", "")


def placed_answer(answer: str, accepted: Sequence[str], place: Corners) -> float:
    """Return half for the `answer` of an object, half for the IoU of its `bbox`."""
    stated = stated_object(answer)
    content = contained(stated["answer"], accepted) if "answer" in stated else 0.0
    try:
        corners = [int(number) for number in ast.literal_eval(stated.get("bbox", ""))]
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError):
        corners = []
    return 0.5 * content + 0.5 * (corners_iou(corners, place) if len(corners) >= 4 else 0.0)


def grounded(answer: str, place: Corners) -> float:
    """Return the IoU of the last four numbers of at most 1000 in brackets; 0 without any."""
    listed = [tuple(map(int, match)) for match in re.findall(_CORNERS, answer)]
    listed = [corners for corners in listed if max(corners) <= 1000]
    return corners_iou(listed[-1], place) if listed else 0.0


def corners_iou(box: Sequence[int], other: Corners) -> float:
    """Return the IoU of two boxes in whole numbers; sides may be negative, as they are there."""
    width = max(0, min(box[2], other[2]) - max(box[0], other[0]))
    height = max(0, min(box[3], other[3]) - max(box[1], other[1]))
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (box[:4], other)]
    union = sum(areas) - width * height
    return width * height / union if union else 0.0


_PAIR = r'["\']?([\w\s]+)["\']?\s*[:=]\s*["\']?([^\n,"\'{}]+)["\']?'
_CORNERS = r"[\(\[]\s*" + r"\s*,\s*".join([r"(\d{1,4000})"] * 4) + r"\s*[\)\]]"
