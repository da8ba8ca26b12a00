"""Do the numbers of a truth fit the unit that the data are said to have? A verdict in words.

Every place and span is read in each unit that it might be in. The declared one is doubted if many do
not fit the media in it while all fit in another, or if in it they leave most of the media free and in
another fill it exactly. Nothing is ever converted by this: what is declared counts.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vlmrl.answers import geometry
from vlmrl.data.annotations import SLACK_PX, StatedPlace
from vlmrl.schema import Frame, Sample, Space, Span

SPACES: dict[Space, str] = {"pixel": "pixel", "norm1000": "0..1000", "norm1": "0..1"}
FORMATS = ("x, y, width, height", "x1, y1, x2, y2")
MIN_MISFITS, MISFIT_SHARE = 3, 0.05
"""So many and this share must not fit the declared unit before it is doubted."""
FEW = 0.01
"""Share that may fail to fit a unit that the data look like: slips of annotators."""
MIN_COUNT, LITTLE, FULL = 20, 0.8, 0.9
"""From this many on, places that reach over less than `LITTLE` of all media in the declared unit and over
`FULL` of them in another look like that."""
SPECK = 0.01
"""A reach up to which a unit cannot be meant."""


@dataclass
class UnitTally:
    """How well the values of one declared unit fit each way of reading them.

    `add` takes the reach of a value by reading: the share of its medium at which it ends; None: it does
    not fit.
    """

    declared: str
    count: int = 0
    misfits: Counter[str] = field(default_factory=Counter)
    reach: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, reaches: Mapping[str, float | None]) -> None:
        """Count one value."""
        self.count += 1
        for reading, reach in reaches.items():
            if reach is None:
                self.misfits[reading] += 1
            else:
                self.reach[reading] = max(self.reach[reading], reach)

    def judge(self) -> str | None:
        """Return "these look like X, you said Y: why"; None: nothing speaks against what is declared."""
        declared, bad = self.declared, self.misfits[self.declared]
        fitting = [r for r in self.reach if r != declared and self.misfits[r] <= FEW * self.count]
        if not fitting:
            return None
        best = max(fitting, key=lambda reading: self.reach[reading])
        if bad >= max(MIN_MISFITS, MISFIT_SHARE * self.count):
            fit = self.count - self.misfits[best]
            return (
                f"look like {best}, you said {declared}: {bad} of {self.count} do not fit as {declared}, "
                f"{fit} fit as {best}"
            )
        own, other = self.reach[declared], self.reach[best]
        loose = self.count >= MIN_COUNT and own <= LITTLE and other >= FULL and best not in FORMATS
        if bad <= FEW * self.count and (loose or (own <= SPECK and other >= 10 * SPECK)):
            return (
                f"look like {best}, you said {declared}: as {declared} none of {self.count} goes beyond "
                f"{100 * own:.2g} % of its medium, as {best} they fill {100 * other:.0f} %"
            )
        return None


def read_place(place: StatedPlace, size: tuple[int, int] | None) -> dict[str, float | None]:
    """Return the reach of a place in the declared space and in all others; `size` is its image's in pixels.

    The declared space of a box is also read with the other meaning of its numbers.
    """
    width, height = size or (place.frame.width, place.frame.height)
    frame = Frame(width, height)
    reaches: dict[str, float | None] = {}
    for space, name in SPACES.items():
        if space != "pixel" or (width and height):
            reaches[name] = _reach(place.numbers, frame, space)
    if len(place.numbers) == 4 and (place.frame.space != "pixel" or (width and height)):
        a, b, c, d = place.numbers
        reaches[FORMATS[0]] = _reach((a, b, a + c, b + d), frame, place.frame.space)
        reaches[FORMATS[1]] = _reach((a, b, c - a, d - b), frame, place.frame.space)
    return reaches


def _reach(numbers: tuple[float, ...], frame: Frame, space: Space) -> float | None:
    width, height = geometry.extent(frame, space)
    slack = SLACK_PX if space != "norm1" else 1e-3
    if not all(map(math.isfinite, numbers)) or min(numbers) < -slack:
        return None
    if len(numbers) == 4 and (numbers[0] >= numbers[2] or numbers[1] >= numbers[3]):
        return None
    x, y = numbers[-2:]
    return None if x > width + slack or y > height + slack else max(x / width, y / height)


def read_span(span: Span, duration: float, fps: float | None) -> dict[str, float | None]:
    """Return for every unit the share of `duration` (seconds) at which the span ends, None if beyond it."""
    units = {"seconds": 1.0, "milliseconds": 1e-3, "0..1": duration, "per cent": duration / 100}
    if fps:
        units["frame numbers"] = 1 / fps
    slack = 0.1 + 0.02 * duration
    ends = {name: span.end * unit for name, unit in units.items()}
    return {
        name: end / duration if span.start >= 0 and end <= duration + slack else None
        for name, end in ends.items()
    }


def content_of(sample: Sample) -> bytes:
    """Return a digest of what a sample asks: its media, texts and truth, not its id."""
    media = [(m.name, m.data, m.start, m.end) for m in sample.media]
    content = repr((media, sample.system, [t.text for t in sample.turns], sample.truth))
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def equal_ids(ids: Iterable[str]) -> str:
    """Return how many rows have the id of another, in words; empty: none has."""
    shared = {name: n for name, n in Counter(ids).items() if n > 1}
    if not shared:
        return ""
    first = f"{next(iter(shared))!r:.60}"
    return f"{sum(shared.values())} rows have an id that is another row's too, the first is {first}"
