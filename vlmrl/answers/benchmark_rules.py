"""The scoring rules of public benchmark harnesses, rebuilt from their published definitions.

They exist to compare with published numbers. Each reads the raw text by its own rule and is laxer
than the strict form beside which it stands; what differs is said in each docstring.
"""

from __future__ import annotations

import re
from typing import Literal

from vlmrl.answers import text
from vlmrl.schema import Box, Frame, Span

Harness = Literal["lmms_eval", "vlmevalkit"]
Numbers = tuple[float, float, float, float]

ROUNDING = 1e-12
"""Unit square: the harness compares whole pixels, which have no rounding."""

_FOUR = r"\[\s*" + r",\s*".join([r"(-?\d+(?:\.\d+)?)"] * 4) + r"\s*\]"
_LMMS_BOX = re.compile(_FOUR, re.ASCII)
_VLMEVAL_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", re.ASCII)
_VLMEVAL_BOX = re.compile(
    r"\[\s*" + r"(?:\s*,\s*|\s+)".join([rf"({_VLMEVAL_NUMBER.pattern})"] * 4) + r"\s*\]", re.ASCII
)
_CLICK = re.compile(r"x=([\d.]+), y=([\d.]+)", re.ASCII)
_DASHED = re.compile(r"(\d+\.*\d*)\s*-\s*(\d+\.*\d*)", re.ASCII)


def refcoco_box(answer: str, frame: Frame, harness: Harness) -> Numbers | None:
    """The box by the RefCOCO rule of a harness, unit square, or None.

    lmms_eval (`tasks/refcoco/utils_rec.py`): the first four bracketed numbers, taken as 0-1,
    neither ordered nor clipped. vlmevalkit (`dataset/refcoco.py`): the first four bracketed
    numbers, else the first four numbers anywhere; up to 1.5 they are 0-1, up to 1000 they are
    0-1000, else pixels; clipped, then ordered.

    Differs from strict: the space is guessed from the values (vlmevalkit), so that a right box in
    pixels of a small image is read wrongly; text before the box, and several boxes, are allowed.
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
    x1, x2 = sorted((_clipped(x1), _clipped(x2)))
    y1, y2 = sorted((_clipped(y1), _clipped(y2)))
    return x1, y1, x2, y2


def raw_iou(a: Numbers, b: Numbers) -> float:
    """IoU of two boxes as they stand, 0 where the union is not positive."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(0.0, width) * max(0.0, height)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap
    return min(1.0, overlap / union) if union > 0 else 0.0


def screenspot_hit(answer: str, truth: Box, frame: Frame, harness: Harness) -> bool:
    """Whether a click counts by the ScreenSpot rule of a harness.

    lmms_eval (`tasks/screenspot/utils_rec.py`, Center_ACC): the centre of the first four bracketed
    numbers, taken as 0-1, lies in the true box. vlmevalkit (`dataset/GUI/screenspot.py`): the point
    `x=.., y=..`, divided by the image size if a coordinate exceeds 1, lies in the true box less one
    pixel on the right and below.

    Differs from strict: what cannot be read is the point (0, 0), which can lie in the true box.
    """
    if harness == "lmms_eval":
        match = _LMMS_BOX.search(answer)
        x1, y1, x2, y2 = _four(match.groups()) if match else (0.0, 0.0, 0.0, 0.0)
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
    right, below = truth.x2 - 1 / width + ROUNDING, truth.y2 - 1 / height + ROUNDING
    return truth.x1 <= x <= right and truth.y1 <= y <= below


def charades_span(answer: str) -> Span | None:
    """The span by the Charades-STA rule of lmms-eval (`tasks/charades_sta/eval_tvg.py`), or None.

    The first `a - b` after every "to" has become a dash, wherever it stands; turned round if it
    runs backwards.

    Differs from strict: it takes any two numbers with a dash between them, such as those of "2 to 3
    people"; it does not video to the video's duration. Differs from the harness: clock times, and the
    sentences "starts at ... ends at ...", are not read.
    """
    match = _DASHED.search(answer.lower().replace("to", "-"))
    if not match:
        return None
    try:
        start, end = sorted((float(match[1]), float(match[2])))
    except ValueError:  # such as 1..2
        return None
    return Span(start, end)


def hull_iou(a: Span, b: Span) -> float:
    """Overlap over the stretch from first start to last end (Charades-STA, VideoChat-R1)."""
    hull = max(a.end, b.end) - min(a.start, b.start)
    return max(0.0, min(a.end, b.end) - max(a.start, b.start)) / hull if hull > 0 else 0.0


def anls(answer: str, accepted: tuple[str, ...], harness: Harness, cut: float = 0.5) -> float:
    """ANLS of DocVQA and InfoVQA as a harness computes it, in [0, 1].

    1 - distance / longer length, the best over the accepted texts, 0 below `cut`; lower case, white
    space collapsed. lmms_eval (`api/metrics.py`) divides by the longer RAW length, vlmevalkit
    (`dataset/utils/vqa_eval.py`) by the longer collapsed one.

    Differs from strict: no Unicode normalisation; an empty answer can be right.
    """
    best, form = 0.0, text.collapsed
    for wanted in accepted:
        a, b = form(answer.lower()), form(wanted.lower())
        raw = max(len(answer), len(wanted)) if harness == "lmms_eval" else max(len(a), len(b))
        best = max(best, 1 - text.edit_distance(a, b) / raw if raw else 1.0)
    return best if best >= cut else 0.0


def relaxed(answer: str, wanted: str, tolerance: float = 0.05) -> bool:
    """Relaxed correctness of ChartQA, one rule in lmms-eval and VLMEvalKit.

    Two numbers (a trailing % divides by 100) may differ by `tolerance` of the truth; all else must
    be equal but for case.

    Source: ChartQA, arXiv 2203.10244, section 5.1; google-research/pix2struct `metrics.py`. Differs
    from strict: years are numbers, so that 2010 passes for 2019; `12%` and `12` differ, and so do
    `1,200` and `1200`, `$5` and `5`.
    """
    stated, right = _as_float(answer), _as_float(wanted)
    if stated is not None and right:
        return abs(stated - right) / abs(right) <= tolerance
    return answer.lower() == wanted.lower()


def _as_float(stated: str) -> float | None:
    try:
        return float(stated.rstrip("%")) / 100 if stated.endswith("%") else float(stated)
    except ValueError:
        return None


def _four(found: tuple[str, ...]) -> Numbers:
    a, b, c, d = map(float, found)
    return a, b, c, d


def _clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _size(frame: Frame) -> tuple[float, float]:
    if not frame.width or not frame.height:
        raise ValueError("the rule of vlmevalkit needs the media's width and height")
    return float(frame.width), float(frame.height)
