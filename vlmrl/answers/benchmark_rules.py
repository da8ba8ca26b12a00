"""The scoring rules of public benchmark harnesses, for comparison with published numbers.

Each rule reads the raw text in its own way and is laxer than the strict form next to which it is
offered; each docstring says how. They can be cheated by definition (what cannot be read may be the
corner of the image, several answers may be allowed), so use them to evaluate, not to train. Every
rule was compared with the harness's own code at the version in `VERSIONS`; the fixed cases in
`tests/rewards/test_verifiers_official.py` are what that code returned.
"""

from __future__ import annotations

import re
from typing import Literal

from vlmrl.answers import text
from vlmrl.schema import Box, Frame, Span

__all__ = [
    "VERSIONS",
    "Harness",
    "anls",
    "charades_span",
    "hull_iou",
    "raw_iou",
    "refcoco_box",
    "relaxed",
    "screenspot_hit",
]

Harness = Literal["lmms_eval", "vlmevalkit"]
Numbers = tuple[float, float, float, float]

VERSIONS: dict[Harness, str] = {
    "lmms_eval": "lmms-eval 75571cf (2026-08-06)",
    "vlmevalkit": "VLMEvalKit e8e78f0 (2026-08-18)",
}
"""The harness version that each rule reproduces."""
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
_CLICK = re.compile(r"x=([\d.]+), y=([\d.]+)")

_PROMPTED = "a specific example is : 20.8 - 30.0 seconds"
_SPAN_WORDS = ("start", "end", "happen")
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?"
_DECIMAL = r"\d+(?:\.\d+)?"
_CLOCK_RANGE = re.compile(rf"\b({_CLOCK})\s*[–-]\s*({_CLOCK})\b")
_ONE_CLOCK = re.compile(rf"\b({_CLOCK})\b")
_ONE_DECIMAL = re.compile(rf"\b({_DECIMAL})\b")
# The harness lets a match begin inside a run of digits, where it could not succeed either; starting
# only at the run's first digit keeps the time linear.
_RANGE = re.compile(rf"(?<!\d)({_DECIMAL})\s*[–-]\s*({_DECIMAL})")
_SECONDS_RANGE = re.compile(rf"(?<!\d)({_DECIMAL})\s*s?\s*[–-]\s*({_DECIMAL})")


def refcoco_box(answer: str, frame: Frame, harness: Harness) -> Numbers | None:
    """Read the box as a harness does for RefCOCO: xyxy in the unit square, or None.

    lmms_eval (`tasks/refcoco/utils_rec.py`): the first four numbers in square brackets, taken as
    0-1, neither ordered nor clipped. vlmevalkit (`dataset/refcoco.py`): the first four numbers in
    square brackets, else the first four numbers anywhere; up to 1.5 they are 0-1, up to 1000 they
    are 0-1000, else pixels; clipped, then ordered.

    Differs from strict: vlmevalkit guesses the space from the values, so a right box in pixels of a
    small image is read wrongly; text before the box, and several boxes, are allowed.
    """
    if harness == "lmms_eval":
        match = _LMMS_BOX.search(answer)
        return _four(match.groups()) if match else None
    match = _VLMEVAL_BOX.search(answer)
    found = match.groups() if match else tuple(_VLMEVAL_NUMBER.findall(answer)[:4])
    if len(found) < 4:
        return None
    x1, y1, x2, y2 = _four(found)
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


def screenspot_hit(answer: str, truth: Box, frame: Frame, harness: Harness) -> bool:
    """Return whether a click counts by the ScreenSpot rule of a harness.

    lmms_eval (`tasks/screenspot/utils_rec.py`, Center_ACC): the centre of the first four numbers in
    square or round brackets lies in the true box; all four are divided by 1000 if one exceeds 1.
    vlmevalkit (`dataset/GUI/screenspot.py`): the point `x=.., y=..`, divided by the image size if a
    coordinate exceeds 1, lies in the true box less one pixel on the right and at the bottom.

    Differs from strict: what cannot be read is the point (0, 0), which may lie in the true box.
    """
    if harness == "lmms_eval":
        match = _LMMS_SCREENSPOT_BOX.search(answer)
        found = _four(match.groups()) if match else (0.0, 0.0, 0.0, 0.0)
        x1, y1, x2, y2 = (n / 1000 for n in found) if max(found) > 1 else found
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


def charades_span(answer: str) -> Span | None:
    """Read the span as lmms-eval does for Charades-STA (`tasks/charades_sta/utils.py`), or None.

    Every "to" becomes a dash, wherever it is, and the text is split at line ends, `!` and `?`; if
    any part mentions a start, an end or "happen", only such parts count. The first of these that is
    found is the span, turned round if it runs backwards: a range of clock times, a range of
    numbers, the first two clock times, the first numbers of two parts, a range such as `5s - 9s`.

    Differs from strict: any two numbers with a dash between them are a span, such as those of "2 to
    3 people", or the first numbers of two lines; nothing is clipped to the video's duration.
    """
    said = answer.lower().replace(_PROMPTED, "").replace("to", "-")
    parts = re.split(r"[!?\n]", said)
    parts = [part for part in parts if any(word in part for word in _SPAN_WORDS)] or parts
    for pattern in (_CLOCK_RANGE, _RANGE):
        if match := _first(pattern, parts):
            return _span(match[1], match[2])
    clocks = [time for part in parts for time in _ONE_CLOCK.findall(part)]
    if len(clocks) > 1:
        return _span(clocks[0], clocks[1])
    firsts = [match[1] for part in parts if (match := _ONE_DECIMAL.search(part))]
    if len(firsts) > 1:
        return _span(firsts[0], firsts[1])
    match = _first(_SECONDS_RANGE, parts)
    return _span(match[1], match[2]) if match else None


def hull_iou(a: Span, b: Span) -> float:
    """Return the overlap over the time from first start to last end, in [0, 1].

    Used by Charades-STA and VideoChat-R1.
    """
    hull = max(a.end, b.end) - min(a.start, b.start)
    return max(0.0, min(a.end, b.end) - max(a.start, b.start)) / hull if hull > 0 else 0.0


def anls(answer: str, accepted: tuple[str, ...], cut: float = 0.5) -> float:
    """Return the ANLS of DocVQA and InfoVQA, in [0, 1], one rule in lmms-eval and VLMEvalKit.

    1 - distance / longer length, the best over the accepted texts, 0 below `cut`. The distance is
    between the texts in lower case with white space collapsed; the lengths are those of the raw
    texts (lmms-eval `api/metrics.py`, VLMEvalKit `dataset/utils/vqa_eval.py`).

    Differs from strict: white space raises the score of a wrong answer, no Unicode normalisation;
    an empty answer can be right.
    """
    best = 0.0
    for right in accepted:
        a, b = text.collapsed(answer.lower()), text.collapsed(right.lower())
        raw = max(len(answer.upper()), len(right.upper()))
        best = max(best, 1 - text.edit_distance(a, b) / raw if raw else 1.0)
    return best if best >= cut else 0.0


def relaxed(answer: str, right: str, harness: Harness, tolerance: float = 0.05) -> bool:
    """Return whether an answer is right by the relaxed accuracy of ChartQA.

    Two numbers (a trailing % divides by 100) may differ by `tolerance` of the truth; everything
    else must be equal but for case. vlmevalkit strips the answer first, lmms_eval does not.

    Source: ChartQA, arXiv 2203.10244, section 5.1; google-research/pix2struct `metrics.py`. Differs
    from strict: years are numbers, so that 2010 passes for 2019; `12%` and `12` differ, and so do
    `1,200` and `1200`, `$5` and `5`.
    """
    if harness == "vlmevalkit":
        answer = answer.strip()
    stated, wanted = _as_float(answer), _as_float(right)
    if stated is not None and wanted:
        return abs(stated - wanted) / abs(wanted) <= tolerance
    return answer.lower() == right.lower()


def _first(pattern: re.Pattern[str], parts: list[str]) -> re.Match[str] | None:
    """Return the first match in the first part that has one."""
    return next((match for part in parts if (match := pattern.search(part))), None)


def _span(first: str, second: str) -> Span:
    start, end = sorted((_seconds(first), _seconds(second)))
    return Span(start, end)


def _seconds(time: str) -> float:
    """Return `3.5`, `02:03` or `01:02:03` in seconds."""
    total = 0.0
    for part in time.split(":"):
        total = 60 * total + float(part)
    return total


def _as_float(stated: str) -> float | None:
    try:
        return float(stated.rstrip("%")) / 100 if stated.endswith("%") else float(stated)
    except ValueError:
        return None


def _four(found: tuple[str, ...]) -> Numbers:
    a, b, c, d = map(float, found)
    return a, b, c, d


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _size(frame: Frame) -> tuple[float, float]:
    if not frame.width or not frame.height:
        raise ValueError("the rule of vlmevalkit needs the media's width and height")
    return float(frame.width), float(frame.height)
