"""Spans of time: Charades-STA."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

from vlmrl.answers.parsing import MAX_CHARS
from vlmrl.schema import Span

# --------------------------------------------------------------------------------------------------
# Spans of time: VideoChat-R1's evaluation, and NExT-GQA's.


# The harness lets a match begin inside a run of digits, where it could not succeed either; starting
# only at the run's first digit keeps the time linear.
_SPAN = re.compile(r"(?<!\d)(\d+(?:\.\d*)?) (?:to|and) (\d+(?:\.\d*)?)")
_PAIR = r"\(\d+(\.\d+)?,\s*\d+(\.\d+)?\)"
_GLUE = re.compile(rf"^\[({_PAIR}(,\s*{_PAIR})*(,)?|)\]$")


def tagged(text: str, tag: str) -> str | None:
    """Return what stands in the first pair of tags, blanks included."""
    match = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return match[1] if match else None


def listed_spans(text: str) -> list[Span]:
    """Return every `12.5 to 17.8` or `12.5 and 17.8` of a text, in order; they may run backwards."""
    return [Span(float(start), float(end)) for start, end in _SPAN.findall(text)]


def videochat_span(text: str) -> Span | None:
    """Return the last `12.5 to 17.8` or `12.5 and 17.8` of a whole completion, be it in a thought.

    Source: VideoChat-R1 src_eval/evaluate_grounding.py; Time-R1 evaluate.py. It may run backwards.
    """
    stated = listed_spans(text)
    return stated[-1] if stated else None


def videochat_iou(span: Span, right: Span) -> float:
    """Return the overlap over the hull, 0 where it is negative (VideoChat-R1's grounding)."""
    hull = max(right.end, span.end) - min(right.start, span.start)
    both = min(right.end, span.end) - max(right.start, span.start)
    return max(both / hull, 0.0) if hull and math.isfinite(hull) else 0.0


def glue_spans(text: str) -> list[Span] | None:
    """Return the spans of a glue tag, `[(1, 2.5), (4, 5)]`; None: it is not of this form.

    Source: VideoChat-R1 src_eval/evaluate_gqa.py (is_valid_two_d_list_format); an empty list is of
    the form, a span that runs backwards is not.
    """
    if len(text) > MAX_CHARS or not _GLUE.match(text):
        return None
    try:
        pairs = [(float(start), float(end)) for start, end in ast.literal_eval(text)]
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return None  # such as the leading zeros of (007, 9)
    return [Span(*pair) for pair in pairs] if all(a <= b for a, b in pairs) else None


def covered_iou(stated: Sequence[Span], right: Sequence[Span]) -> float:
    """Return the IoU of the times that two lists of spans cover; 1 where neither covers any.

    Source: VideoChat-R1 src_eval/evaluate_gqa.py (compute_iou).
    """
    first, second = _merged(stated), _merged(right)
    both = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in first for b in second)
    lengths = [sum(span.end - span.start for span in spans) for spans in (first, second)]
    union = lengths[0] + lengths[1] - both
    return both / union if union else 1.0


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for following in sorted(spans, key=lambda span: span.start):
        if merged and following.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, following.end))
        else:
            merged.append(following)
    return merged


def next_gqa_overlap(span: Span, right: Span) -> tuple[float, float]:
    """Return IoU and IoP of a span with one true span, unclipped: they may be negative.

    Source: NExT-GQA code/TempGQA/eval_ground.py (get_tIoU).

    Differs from strict: a span of no length inside the true one has IoP 1.
    """
    if span.start == span.end:
        return 0.0, float(right.start <= span.start <= right.end)
    hull = max(right.end, span.end) - min(right.start, span.start)
    both = min(right.end, span.end) - max(right.start, span.start)
    length = span.end - span.start
    return both / hull if hull > 0 else 0.0, both / length if length > 0 else 0.0


# --------------------------------------------------------------------------------------------------
# Moments of QVHighlights, of which a query may have several.


MAX_MOMENTS = 10
"""Stated moments that count for the average precision."""
MOMENT_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


def moment_precisions(stated: Sequence[Span], right: Sequence[Span]) -> list[float]:
    """Return the average precision of one query at each of `MOMENT_THRESHOLDS`.

    Moments are ranked as they are listed. Each takes the free true one that it overlaps most, of equal
    ones the last.

    Source: moment_detr standalone_eval/utils.py (compute_average_precision_detection).

    Differs from strict: a moment that runs backwards and is as long as a true one hits it.
    """
    kept = stated[:MAX_MOMENTS]
    ranked = [_ranked(span, right) for span in kept]
    return [_moment_precision(ranked, len(right), threshold) for threshold in MOMENT_THRESHOLDS]


def _ranked(span: Span, right: Sequence[Span]) -> list[tuple[float, int]]:
    """Return the overlap with each true span and its number, by falling overlap; nan comes first."""
    overlaps = [(_moment_iou(span, other), number) for number, other in enumerate(right)]
    return sorted(overlaps, key=lambda pair: (math.isnan(pair[0]), pair), reverse=True)


def _moment_iou(a: Span, b: Span) -> float:
    both = max(0.0, min(a.end, b.end) - max(a.start, b.start))
    union = (a.end - a.start) + (b.end - b.start) - both
    return both / union if union else math.nan


def _moment_precision(
    ranked: Sequence[Sequence[tuple[float, int]]], count: int, threshold: float
) -> float:
    """Return the area under the precision that later ranks do not exceed, over the recall."""
    free, hits, precisions = set(range(count)), 0, []
    for rank, overlaps in enumerate(ranked, start=1):
        # A nan is not below the threshold.
        taken = next((n for iou, n in overlaps if not iou < threshold and n in free), None)
        free.discard(-1 if taken is None else taken)
        hits += taken is not None
        precisions.append((hits / rank, taken is not None))
    best = area = 0.0
    for precision, hit in reversed(precisions):
        best = max(best, precision)
        area += best * hit / count
    return area


# --------------------------------------------------------------------------------------------------
# Charades-STA.


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
    plain = answer.lower().replace(_PROMPTED, "").replace("to", "-")
    parts = re.split(r"[!?\n]", plain)
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
