"""Places and stretches of time, in the unit square of the original media and in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Space = Literal["pixel", "resized", "norm1000", "norm1"]


@dataclass(frozen=True, slots=True)
class Box:
    """A labelled box, xyxy in the unit square of the original media, x1 < x2 and y1 < y2.

    Example: Box(0.25, 0.1, 0.5, 0.9, label="dog", score=0.8)
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str | None = None
    score: float | None = None

    @property
    def xyxy(self) -> tuple[float, float, float, float]:
        """Return (x1, y1, x2, y2), unit square."""
        return (self.x1, self.y1, self.x2, self.y2)


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the unit square of the original media. Example: Point(0.5, 0.25)."""

    x: float
    y: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in seconds, start <= end. Example: Span(3.0, 9.5)."""

    start: float
    end: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class BoxTrack:
    """Boxes of one object over time: times in seconds, strictly increasing, one box each.

    Example: Track(times=(0.0, 0.5), boxes=(Box(0, 0, .1, .1), Box(.1, 0, .2, .1)))
    """

    times: tuple[float, ...]
    boxes: tuple[Box, ...]
    label: str | None = None


class Polygon(tuple[tuple[float, float], ...]):
    """The corners (x, y) of an outline in order, in the unit square of the original media.

    Example: Polygon([(0.1, 0.1), (0.4, 0.1), (0.4, 0.5)])
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """The map from the coordinates and times of a text to the original media.

    `width`, `height` are pixels of the original media; `resized_width`, `resized_height` those of
    the image that the model saw; `space` says which of the four conventions the text uses. `duration`
    is in seconds. `answers.geometry` converts.

    Example: Frame(640, 480, space="norm1000")
    """

    width: int | None = None
    height: int | None = None
    space: Space = "pixel"
    resized_width: int | None = None
    resized_height: int | None = None
    duration: float | None = None
