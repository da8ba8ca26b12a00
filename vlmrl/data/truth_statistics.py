"""Statistics of the truths of a source: what a reader of rows cannot see and a training run suffers from.

Sizes of boxes, those under a pixel, on the border, stated twice; points; spans against the duration of
their medium; rows that repeat another; and whether the numbers fit the unit that the data are said to be in.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.data.cards.box_checks import StatedPlace
from vlmrl.data.truth_units import SPACES, UnitTally, read_place, read_span
from vlmrl.media_types import Audio, Decoded, PilImage, Video
from vlmrl.schema import Box, Sample

__all__ = ["TruthStatistics"]

BORDER = 1e-6
"""Share of the image within which a place touches its border."""
BEYOND_S = 0.1
"""Seconds by which a span may end after its medium: containers round."""
WHOLE = 0.99
"""Share of the duration from which a span is all of it."""
KINDS = ("boxes", "points", "spans")


@dataclass
class TruthStatistics:
    """What is counted over the rows of one source; `add` each row, then print `lines`."""

    per_row: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in KINDS})
    """Kind -> how many each row states."""
    counts: Counter[str] = field(default_factory=Counter)
    """`boxes touch the border` and the like."""
    sizes: list[float] = field(default_factory=list)
    """Shares of the image that boxes cover."""
    lengths: list[float] = field(default_factory=list)
    """Seconds of spans."""
    units: dict[tuple[str, str], UnitTally] = field(default_factory=dict)
    """Kind and declared unit -> how values fit each unit."""
    seen: set[bytes] = field(default_factory=set)
    """Digests of rows."""

    def add(
        self, sample: Sample | None, decoded: Sequence[Decoded], stated: Sequence[StatedPlace]
    ) -> list[str]:
        """Count a row; return what is odd about it, in words. `sample` is None where the row is bad."""
        main = 0 if sample is None else sample.main_medium
        medium = decoded[main] if main is not None and decoded else None
        size = medium.size if isinstance(medium, PilImage | Video) else None
        for place in stated:
            kind = "boxes" if len(place.numbers) == 4 else "points"
            self._tally(kind, SPACES[place.frame.space]).add(read_place(place, size))
        if sample is None:
            return []
        odd = [*self._places(sample, size), *self._spans(sample, medium)]
        digest = _digest(sample)
        odd += ["repeats an earlier row"] if digest in self.seen else []
        self.counts["rows"] += digest in self.seen
        self.seen.add(digest)
        return odd

    def _tally(self, kind: str, unit: str) -> UnitTally:
        return self.units.setdefault((kind, unit), UnitTally(unit))

    def _places(self, sample: Sample, size: tuple[int, int] | None) -> Iterator[str]:
        boxes, points = sample.truth.boxes, sample.truth.points
        if boxes is not None:
            self.per_row["boxes"].append(len(boxes))
            self.sizes += [(b.x2 - b.x1) * (b.y2 - b.y1) for b in boxes]
            yield from self._count("boxes under 1 px", sum(_is_tiny(b, size) for b in boxes))
            self.counts["boxes on the border"] += sum(_on_border(b.xyxy) for b in boxes)
            yield from self._count("boxes stated twice", len(boxes) - len(set(boxes)))
        if points is not None:
            self.per_row["points"].append(len(points))
            self.counts["points on the border"] += sum(_on_border((p.x, p.y)) for p in points)
            yield from self._count("points stated twice", len(points) - len(set(points)))

    def _spans(self, sample: Sample, medium: Any) -> Iterator[str]:
        spans = sample.truth.spans
        if spans is None:
            return
        self.per_row["spans"].append(len(spans))
        self.lengths += [span.end - span.start for span in spans]
        yield from self._count("spans without length", sum(s.end <= s.start for s in spans))
        yield from self._count("spans stated twice", len(spans) - len(set(spans)))
        if not isinstance(medium, Video | Audio) or medium.duration <= 0:
            return
        duration, fps = medium.duration, medium.fps if isinstance(medium, Video) else None
        for span in spans:
            self._tally("spans", "seconds").add(read_span(span, duration, fps))
        whole = sum(span.end - span.start >= WHOLE * duration for span in spans)
        self.counts["spans over all of their medium"] += whole
        late = sum(span.end > duration + BEYOND_S for span in spans)
        yield from self._count("spans beyond the end of their medium", late)

    def _count(self, what: str, number: int) -> Iterator[str]:
        """Count something odd, and yield it in words if there is any."""
        self.counts[what] += number
        if number:
            yield f"{number} {what}"

    def lines(self) -> Iterator[str]:
        """Yield the statistics as lines of text, warnings last."""
        for kind, numbers in self.per_row.items():
            if numbers:
                yield self._about(kind, numbers)
        if self.counts["rows"]:
            yield f"warning: {self.counts['rows']} rows repeat an earlier row: media, question, truth"
        if tiny := self.counts["boxes under 1 px"]:
            yield f"warning: {tiny} boxes are smaller than a pixel on a side, which no answer can match"
        if late := self.counts["spans beyond the end of their medium"]:
            yield f"warning: {late} spans end after their medium"
        for (kind, _), tally in self.units.items():
            if verdict := tally.judge():
                yield f"warning: these {kind} {verdict}"

    def _about(self, kind: str, numbers: Sequence[int]) -> str:
        total = sum(numbers)
        parts = [f"{total} in {len(numbers)} rows, {min(numbers)} to {max(numbers)} a row"]
        if empty := sum(number == 0 for number in numbers):
            parts.append(f"{empty} rows have none")
        if kind == "boxes" and self.sizes:
            parts.append(f"each {_spread([100 * size for size in self.sizes])} % of its image")
        if kind == "spans" and self.lengths:
            parts.append(f"each {_spread(self.lengths)} s long")
        for what, number in self.counts.items():
            if number and what.startswith(f"{kind} "):
                parts.append(
                    f"{number} ({_percent(number, total)}) {what.removeprefix(f'{kind} ')}"
                )
        for (of, unit), tally in self.units.items():
            if of == kind and tally.misfits[unit]:
                parts.append(f"{tally.misfits[unit]} of {tally.count} do not fit as {unit}")
        return f"{kind}: {'; '.join(parts)}"


def _spread(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{low:.3g} to {high:.3g} (median {middle:.3g})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2g} %"


def _is_tiny(box: Box, size: tuple[int, int] | None) -> bool:
    if size is None:
        return False
    return min((box.x2 - box.x1) * size[0], (box.y2 - box.y1) * size[1]) < 1 - BORDER


def _on_border(numbers: Sequence[float]) -> bool:
    return min(numbers) <= BORDER or max(numbers) >= 1 - BORDER


def _digest(sample: Sample) -> bytes:
    media = [(m.name, m.data, m.start, m.end) for m in sample.media]
    said = repr((media, sample.system, [t.text for t in sample.turns], sample.truth))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=12).digest()
