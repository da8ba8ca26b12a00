"""Points: ScreenSpot-v2, ScreenSpot-Pro, RefSpatial-Bench."""

from __future__ import annotations

import re

__all__ = ["screen_point", "unit_points"]

XY = tuple[float, float]


def screen_point(answer: str, size: XY) -> XY | None:
    """Read a click, 0 to 1, as lmms-eval does for ScreenSpot-v2 and -Pro (tasks/screenspot_v2/utils.py).

    The centre of four numbers in a bbox tag; else a pair in brackets; else `x: .., y: ..`; else the
    centre of four numbers if the answer speaks of a box; else the first two numbers. A percentage is
    divided by 100, and both by `size` if one exceeds 1: width and height in pixels, (1, 1) where the
    row has none.
    """
    found = _read_point(answer)
    if found is None or max(found) <= 1:
        return found
    return found[0] / size[0], found[1] / size[1]


def _read_point(answer: str) -> XY | None:
    tag = _TAG.search(answer)
    if tag and len(corners := _NUMBER.findall(tag[1])) >= 4:
        return _centre(corners)
    for pattern in (_PAIR, _NAMED):
        if match := pattern.search(answer):
            return _value(match[1]), _value(match[2])
    numbers = _NUMBER.findall(answer)
    if len(numbers) >= 4 and any(word in answer.lower() for word in ("box", "rect")):
        return _centre(numbers)
    return (_value(numbers[0]), _value(numbers[1])) if len(numbers) >= 2 else None


def unit_points(answer: str, width: int, height: int) -> list[tuple[int, int]]:
    """Read points `(x, y)` of 0 to 1 as pixels, as lmms-eval does for RefSpatial-Bench and Where2Place.

    Source: tasks/refspatial/utils.py. The share of points in the mask is its score, so that a single
    safe point pays in full.
    """
    found = []
    for match in _TUPLE.findall(answer):
        numbers = [float(number) for number in match.split(",")]
        if len(numbers) == 2:
            found.append((int(numbers[0] * width), int(numbers[1] * height)))
    return found


def _centre(numbers: list[str]) -> XY:
    x1, y1, x2, y2 = map(_value, numbers[:4])
    return (x1 + x2) / 2, (y1 + y2) / 2


def _value(said: str) -> float:
    return float(said[:-1]) / 100 if said.endswith("%") else float(said)


_N = r"-?\d+(?:\.\d+)?%?"
_NUMBER = re.compile(_N)
_TAG = re.compile(r"<\s*bbox[^>]*>(.*?)<\s*/\s*bbox\s*>", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(rf"[\[\(]\s*({_N})\s*(?:,|\s)\s*({_N})\s*[\]\)]")
_NAMED = re.compile(
    rf"['\"]?x['\"]?\s*[:=]\s*({_N}).*?['\"]?y['\"]?\s*[:=]\s*({_N})", re.IGNORECASE | re.DOTALL
)
_TUPLE = re.compile(r"\(([-+]?\d+\.?\d*(?:,\s*[-+]?\d+\.?\d*)*?)\)")
