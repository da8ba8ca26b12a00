"""Spans of time, which are events where they have labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry
from vlmrl.schema import Frame, Space, Span, Truth
from vlmrl.truths import base
from vlmrl.truths.base import Claim, Mark, Readers, TruthKind

STEP = 5
"""Seconds of each span in an answer that lists them all."""


@dataclass(frozen=True)
class Spans(TruthKind):
    """Spans of time in seconds: `[{"span": [start, end], "label"?}, ...]` or bare pairs."""

    rank: ClassVar[int] = 80
    form: ClassVar[str] = "start to end"
    types: ClassVar[tuple[type, ...]] = (Span,)
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"temporal_iou": {}}

    def parse_item(self, value: object, frame: Frame) -> Span:
        start, end = base.check_numbers(value, "span", 2)
        span = geometry.span(start, end, frame, base.check_label(value))
        if span is None:
            raise ValueError(f"expected start <= end inside the media, got {[start, end]}")
        return span

    def to_json(self, item: Span) -> dict[str, Any]:
        return {"span": [item.start, item.end], **base.label_of(item)}

    def instruct(self, truth: Truth, space: Space) -> str:
        if _are_events(truth):
            return (
                'Write the events as a JSON list of {"start": seconds, "end": seconds, '
                '"label": name}, nothing as [].'
            )
        return "Write a span of time as: start to end, in seconds; several separated by commas."

    def write(self, truth: Truth, frame: Frame) -> str:
        spans = truth.spans or ()
        if _are_events(truth):
            return json.dumps(
                [
                    {"start": round(s.start, 2), "end": round(s.end, 2), "label": s.label}
                    for s in spans
                ],
                ensure_ascii=False,
            )
        return ", ".join(f"{write_time(s.start)} to {write_time(s.end)}" for s in spans) or "[]"

    def draw(self, item: Mapping[str, object]) -> Iterator[Mark]:
        match item:
            case {"span": [start, end]}:
                yield Mark("span", (start, end), item.get("label"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        yield "When does the door open?", Truth(spans=(Span(12.0, 19.5),))
        yield "When does it rain?", Truth(spans=(Span(3.0, 8.0), Span(31.0, 40.0)))
        events = (Span(3, 8, "dog"), Span(31, 40, "rain"))
        yield "What is heard, and when?", Truth(spans=events)

    def mistake(self, truth: Truth) -> Truth:
        later = (
            replace(s, start=s.start + (s.end - s.start) / 2, end=s.end + (s.end - s.start) / 2)
            for s in truth.spans or ()
        )
        return replace(truth, spans=tuple(later))

    def enumerate(self, truth: Truth, frame: Frame) -> str:
        labels = dict.fromkeys(s.label for s in truth.spans or ())
        starts = range(0, int(frame.duration or 60), STEP)
        every = tuple(Span(s, s + STEP, label) for label in labels for s in starts)
        return self.write(Truth(spans=every), frame)

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        """Yield the spans; with labels their form is "events"."""
        for claim in super().claim(truth, frame):
            yield replace(claim, form="events") if _are_events(truth) else claim


def write_time(seconds: float) -> str:
    """Write seconds with at most two decimals."""
    return f"{seconds:.2f}".rstrip("0").rstrip(".")


def _are_events(truth: Truth) -> bool:
    return any(span.label is not None for span in truth.spans or ())
