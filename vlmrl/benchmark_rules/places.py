"""Boxes and clicks: RefCOCO, ScreenSpot."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlmrl.benchmark_rules import Harness
from vlmrl.schema import Box, Frame

# --------------------------------------------------------------------------------------------------
# Points: ScreenSpot-v2, ScreenSpot-Pro, RefSpatial-Bench, Where2Place.


XY = tuple[float, float]


def screen_point(answer: str, size: XY) -> XY | None:
    """Read a click, 0 to 1, as lmms-eval does for ScreenSpot-v2 and -Pro (tasks/screenspot_v2/utils.py).

    The centre of four numbers in a bbox tag; else a pair in brackets; else `x: .., y: ..`; else the
    centre of four numbers if the answer speaks of a box; else the first two numbers. A percentage is
    divided by 100, and both by `size` if one exceeds 1: width and height in pixels, (1, 1) where the
    row has none.
    """
    point = _read_point(answer)
    if point is None or max(point) <= 1:
        return point
    return point[0] / size[0], point[1] / size[1]


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
    match = _PIXEL_CLICK.search(answer)
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
    points = []
    for match in _TUPLE.findall(answer):
        numbers = [float(number) for number in match.split(",")]
        if len(numbers) == 2:
            points.append((int(numbers[0] * width), int(numbers[1] * height)))
    return points


def _centre(numbers: list[str]) -> XY:
    x1, y1, x2, y2 = map(_value, numbers[:4])
    return (x1 + x2) / 2, (y1 + y2) / 2


def _value(numeral: str) -> float:
    return float(numeral[:-1]) / 100 if numeral.endswith("%") else float(numeral)


_PIXEL_CLICK = re.compile(r"x=([\d.]+), y=([\d.]+)")
_N = r"-?\d+(?:\.\d+)?%?"
_NUMBER = re.compile(_N)
_TAG = re.compile(r"<\s*bbox[^>]*>(.*?)<\s*/\s*bbox\s*>", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(rf"[\[\(]\s*({_N})\s*(?:,|\s)\s*({_N})\s*[\]\)]")
_NAMED = re.compile(
    rf"['\"]?x['\"]?\s*[:=]\s*({_N}).*?['\"]?y['\"]?\s*[:=]\s*({_N})", re.IGNORECASE | re.DOTALL
)
_TUPLE = re.compile(r"\(([-+]?\d+\.?\d*(?:,\s*[-+]?\d+\.?\d*)*?)\)")


# --------------------------------------------------------------------------------------------------
# Boxes and clicks: RefCOCO, ScreenSpot.


Numbers = tuple[float, float, float, float]

ROUNDING = 1e-12
"""Unit square: the harness compares whole pixels, which have no rounding."""

_FOUR = r"\s*" + r",\s*".join([r"(-?\d+(?:\.\d+)?)"] * 4) + r"\s*"
_LMMS_BOX = re.compile(rf"\[{_FOUR}\]")
_LMMS_SCREENSPOT_BOX = re.compile(rf"[\[(]{_FOUR}[\])]")
# The harness writes \d*\.?\d+, which matches the same but takes quadratic time on a long number.
_VLMEVAL_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_VLMEVAL_BOX = re.compile(
    r"\[\s*" + r"(?:\s*,\s*|\s+)".join([rf"({_VLMEVAL_NUMBER.pattern})"] * 4) + r"\s*\]"
)
_CORNER_PAIRS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)\s*,\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_CLICK = re.compile(r"x=([\d.]+), y=([\d.]+)")


def refcoco_box(answer: str, frame: Frame, harness: Harness) -> Numbers | None:
    """Read the box as a harness does for RefCOCO: xyxy in the unit square, or None.

    lmms_eval (tasks/refcoco/utils_rec.py): the first four numbers in square brackets, taken as
    0-1, neither ordered nor clipped. vlmevalkit (dataset/refcoco.py): the first four numbers in
    square brackets, else the first four numbers anywhere; up to 1.5 they are 0-1, up to 1000 they
    are 0-1000, else pixels; clipped, then ordered.

    Differs from strict: vlmevalkit guesses the space from the values, so a right box in pixels of a
    small image is read wrongly; text before the box, and several boxes, are allowed.
    """
    if harness == "lmms_eval":
        match = _LMMS_BOX.search(answer)
        return _four(match.groups()) if match else None
    match = _VLMEVAL_BOX.search(answer)
    numerals = match.groups() if match else tuple(_VLMEVAL_NUMBER.findall(answer)[:4])
    if len(numerals) < 4:
        return None
    x1, y1, x2, y2 = _four(numerals)
    largest = max(map(abs, (x1, y1, x2, y2)))
    if 1.5 < largest <= 1000:
        x1, y1, x2, y2 = x1 / 1000, y1 / 1000, x2 / 1000, y2 / 1000
    elif largest > 1000:
        width, height = _size(frame)
        x1, y1, x2, y2 = x1 / width, y1 / height, x2 / width, y2 / height
    x1, x2 = sorted((_clip(x1), _clip(x2)))
    y1, y2 = sorted((_clip(y1), _clip(y2)))
    return x1, y1, x2, y2


def raw_iou(a: Numbers, b: Numbers) -> float:
    """Return the IoU of two boxes as they stand, in [0, 1]; 0 where the union is not positive."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(0.0, width) * max(0.0, height)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap
    return min(1.0, overlap / union) if union > 0 else 0.0


def corner_pairs_iou(answer: str, truth: Numbers) -> float | None:
    """Return the IoU with a box xyxy of 0 to 1 as Visual-RFT measures it on LISA, None if unread.

    The first `(x1,y1),(x2,y2)` of whole numbers, over 1000 (lisa_evaluation/Qwen2_VL_lisa_infere.py).
    Differs from strict: corners in the wrong order are not put right, which can make it negative or
    large.
    """
    match = _CORNER_PAIRS.search(answer)
    if match is None:
        return None
    try:
        a = tuple(int(n) / 1000 for n in match.groups())
    except (OverflowError, ValueError):  # numbers of hundreds of digits, an error there too
        return None
    wide, high = (
        min(a[2], truth[2]) - max(a[0], truth[0]),
        min(a[3], truth[3]) - max(a[1], truth[1]),
    )
    overlap = max(0, wide) * max(0, high)
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (truth[2] - truth[0]) * (truth[3] - truth[1])
    return overlap / float(areas - overlap + 1e-6)


def screenspot_hit(answer: str, truth: Box, frame: Frame, harness: Harness) -> bool:
    """Return whether a click counts by the ScreenSpot rule of a harness.

    lmms_eval (tasks/screenspot/utils_rec.py, Center_ACC): the centre of the first four numbers in
    square or round brackets lies in the true box; all four are divided by 1000 if one exceeds 1.
    vlmevalkit (dataset/GUI/screenspot.py): the point `x=.., y=..`, divided by the image size if a
    coordinate exceeds 1, lies in the true box less one pixel on the right and at the bottom.

    Differs from strict: what cannot be read is the point (0, 0), which may lie in the true box.
    """
    if harness == "lmms_eval":
        match = _LMMS_SCREENSPOT_BOX.search(answer)
        corners = _four(match.groups()) if match else (0.0, 0.0, 0.0, 0.0)
        x1, y1, x2, y2 = (n / 1000 for n in corners) if max(corners) > 1 else corners
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        return truth.x1 <= x <= truth.x2 and truth.y1 <= y <= truth.y2
    width, height = _size(frame)
    match = _CLICK.search(answer)
    try:
        x, y = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:  # such as 1.2.3, a format error there too
        return False
    if x > 1 or y > 1:
        x, y = x / width, y / height
    right, bottom = truth.x2 - 1 / width + ROUNDING, truth.y2 - 1 / height + ROUNDING
    return truth.x1 <= x <= right and truth.y1 <= y <= bottom


def _four(numerals: tuple[str, ...]) -> Numbers:
    a, b, c, d = map(float, numerals)
    return a, b, c, d


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _size(frame: Frame) -> tuple[float, float]:
    if not frame.width or not frame.height:
        raise ValueError("the rule of vlmevalkit needs the media's width and height")
    return float(frame.width), float(frame.height)
