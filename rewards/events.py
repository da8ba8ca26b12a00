"""Measure how well a list of labelled sound events agrees with the true list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from vlmrl.answers import geometry, parsing, text
from vlmrl.answers.geometry import Array, agreement, pairs
from vlmrl.schema import Completion, Span, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Events(AnswerVerifier):
    """Agreement of P stated events (spans with labels) with N true ones, in [0, 1].

    `measure`: `iou` pairs events of agreeing labels one to one and gives the sum of their IoU in
    time / max(N, P); `event` 2M / (N + P), where M is how many can be paired so that the starts
    differ by at most `collar` seconds and the ends by at most `collar` seconds or `end_share` of the
    true event's length, whichever is more; `segment` 2M / (A + B), where A and B count the segments of
    `resolution` seconds that each label is stated and true in, and M those in both. An event
    without a label is of the only true class, if there is but one.

    Published sets: DCASE 2018 to 2022 task 4: `measure: event`; DCASE 2016 and 2017 task 3: `measure:
    segment`.

    Refuses: wrong labels, duplicates (they count in P), events that run backwards or lie outside the
    recording, nan, infinities.

    Source: Mesaros et al. 2016, "Metrics for Polyphonic Sound Event Detection", Applied Sciences 6(6);
    its reference sed_eval gives these F-scores.
    Differs: for one recording, not summed over many.

    Raises:
        ValueError: the truth has no spans and is not declared none.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(spans=(Span(0, 2, "dog"), Span(5, 9, "rain")))
    >>> judge(Events(), '[{"start": 0, "end": 2, "label": "dog"}]', truth).score
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ("spans",)
    laws: ClassVar[Laws] = Laws(
        truth=("labelled spans",),
        junk='[ITEMS, {"start": 98.5, "end": 99.5, "label": "dog"}]',
        options=({}, {"measure": "event"}, {"measure": "segment"}),
        any_order=True,
    )

    measure: Literal["iou", "event", "segment"] = "iou"
    """`iou`, `event` or `segment`, as above."""
    collar: float = 0.2
    """Seconds by which start and end may differ (`event`)."""
    end_share: float = 0.2
    """Share of the true event's length by which the end may differ, if that is more (`event`)."""
    resolution: float = 1.0
    """Seconds of a segment (`segment`)."""

    def __post_init__(self) -> None:
        """Refuse options without a meaning."""
        if not (0 <= self.collar < math.inf and 0 <= self.end_share < 1):
            raise ValueError("collar is seconds from 0 on, end_share a share in [0, 1)")
        if not 0.001 <= self.resolution < math.inf:
            raise ValueError(
                f"expected resolution of at least 0.001 seconds, got {self.resolution}"
            )

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Pair or count, and measure."""
        right = truth.spans
        if not right:
            raise ValueError("no true events: declare the truth none if there is nothing to find")
        spans, note = parsing.spans(answer, completion.frame)
        if not spans:
            return Verdict(0.0, note=note)
        if self.measure == "segment":
            score = self._segments(spans, right)
        else:
            close = _iou(spans, right) if self.measure == "iou" else self._within(spans, right)
            quality = close * agreement(spans, right)
            total = math.fsum(float(quality[pair]) for pair in pairs(quality, 0.0))
            most = max(quality.shape) if self.measure == "iou" else sum(quality.shape) / 2
            score = min(1.0, total / most)
        return Verdict(score, {self.measure: score}, tuple(spans), note)

    def _within(self, spans: Sequence[Span], right: Sequence[Span]) -> Array:
        """[P, N], 1 where start and end are near enough to the true ones, else 0."""
        a, b = _times(spans)[:, None], _times(right)[None]
        allowed = np.maximum(self.collar, self.end_share * (b[..., 1] - b[..., 0]))
        starts, ends = np.abs(a - b)[..., 0], np.abs(a - b)[..., 1]
        return ((starts <= self.collar) & (ends <= allowed)).astype(np.float64)

    def _segments(self, spans: Sequence[Span], right: Sequence[Span]) -> float:
        """F1 of the segments in which each label is active."""
        labels = {text.label(s.label) for s in right}
        only = labels.pop() if len(labels) == 1 else ""
        stated = [replace(s, label=text.label(s.label) or only) for s in spans]
        true = [replace(s, label=text.label(s.label)) for s in right]
        both = [self._active(events) for events in (stated, true, [*stated, *true])]
        hits = both[0] + both[1] - both[2]
        return 2 * hits / (both[0] + both[1])

    def _active(self, events: Sequence[Span]) -> float:
        """How many segments the labels are active in, summed over the labels."""
        grown = [self._grown(event) for event in events]
        return math.fsum(
            end - start
            for label in {s.label for s in grown}
            for start, end in geometry.merged(s for s in grown if s.label == label)
        )

    def _grown(self, event: Span) -> Span:
        """From the start of its first segment to the end of its last, counted in segments."""
        first = math.floor(event.start / self.resolution)
        return replace(
            event, start=first, end=max(math.ceil(event.end / self.resolution), first + 1)
        )


def _times(spans: Sequence[Span]) -> Array:
    return np.array([[s.start, s.end] for s in spans], dtype=np.float64)


def _iou(spans: Sequence[Span], right: Sequence[Span]) -> Array:
    """IoU in time of every pair, [P, N] in [0, 1]; two equal moments without length give 1."""
    a, b = _times(spans)[:, None], _times(right)[None]
    overlap = np.clip(np.minimum(a[..., 1], b[..., 1]) - np.maximum(a[..., 0], b[..., 0]), 0, None)
    union = (a[..., 1] - a[..., 0]) + (b[..., 1] - b[..., 0]) - overlap
    same = (a == b).all(-1).astype(np.float64)
    return np.divide(overlap, union, out=same, where=union > 0)
