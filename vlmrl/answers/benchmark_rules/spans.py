"""Spans of time: Charades-STA."""

from __future__ import annotations

import re

from vlmrl.schema import Span

__all__ = ["charades_span", "hull_iou"]

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


def charades_span(answer: str) -> Span | None:
    """Read the span as lmms-eval does for Charades-STA (tasks/charades_sta/utils.py), or None.

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
