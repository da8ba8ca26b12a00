"""Points: ScreenSpot-v2, ScreenSpot-Pro, RefSpatial-Bench, Where2Place."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["XY", "pyautogui_point", "screen_point", "share_in_mask", "unit_points"]

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


def pyautogui_point(answer: str, size: XY) -> XY | None:
    """Read a click, 0 to 1, as VLMEvalKit does for ScreenSpot-Pro (dataset/GUI/screenspot_pro.py).

    `x=.., y=..`, both divided by `size`, width and height in pixels, if one exceeds 1. What is not of
    this form is the point (0, 0), which may lie in the box; None is a format error, such as 1.2.3.
    """
    match = _CLICK.search(answer)
    try:
        x, y = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:
        return None
    return (x / size[0], y / size[1]) if x > 1 or y > 1 else (x, y)


def share_in_mask(points: Sequence[tuple[int, int]], mask: npt.NDArray[np.uint8]) -> float:
    """Return the share of points, pixels x and y, that lie in a mask [height, width]; of none, 0."""
    high, wide = mask.shape
    inside = [0 <= x < wide and 0 <= y < high and bool(mask[y, x]) for x, y in points]
    return sum(inside) / len(inside) if inside else 0.0


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


_CLICK = re.compile(r"x=([\d.]+), y=([\d.]+)")
_N = r"-?\d+(?:\.\d+)?%?"
_NUMBER = re.compile(_N)
_TAG = re.compile(r"<\s*bbox[^>]*>(.*?)<\s*/\s*bbox\s*>", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(rf"[\[\(]\s*({_N})\s*(?:,|\s)\s*({_N})\s*[\]\)]")
_NAMED = re.compile(
    rf"['\"]?x['\"]?\s*[:=]\s*({_N}).*?['\"]?y['\"]?\s*[:=]\s*({_N})", re.IGNORECASE | re.DOTALL
)
_TUPLE = re.compile(r"\(([-+]?\d+\.?\d*(?:,\s*[-+]?\d+\.?\d*)*?)\)")
