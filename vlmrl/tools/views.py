"""What a tool sees of a rollout: the media that the policy was shown, originals at full size, no truth.

Images are numbered from 1 in the order in which they were shown, videos and audio likewise. An image
that was cut out of another one is kept as its box in the original, never as pixels: a crop of a crop
is cut from the original, and its box is in the original's unit square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image

from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.media.access import Access
from vlmrl.media.audio import load_audio
from vlmrl.media.video import load_video
from vlmrl.media_types import Audio, Decoded, PilImage, Video, kind_of
from vlmrl.schema import Box, Frame, Media, MediaKind, Span

__all__ = ["Refused", "Shown", "View"]

WHOLE = Box(0.0, 0.0, 1.0, 1.0)
MAX_RATIO = 100
"""Ratio of the sides of an image; processors refuse more (Qwen: 200)."""


class Refused(Exception):
    """What was asked for cannot be done: the policy is told why, in the one sentence given."""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """An image, a video or audio that the policy was shown, or that a tool returns."""

    medium: Decoded
    """As it was shown. Of an original: at full size."""
    frame: Frame = field(default_factory=Frame)
    """The space of the coordinates in which the policy writes of it."""
    original: int | None = None
    """Number of the image that it was cut from, itself an original; None: it is one."""
    box: Box = WHOLE
    """Where it is in the original."""
    source: Media | None = None
    """The file of a video or audio, for a tool that reads more of it."""
    name: str = ""
    """Of what a search found: its name in the index, for rewards; `Call.found` keeps it."""

    def resized(self, width: int, height: int) -> Shown:
        """Return an image at another size in pixels."""
        assert isinstance(self.medium, Image.Image)
        if self.medium.size == (width, height):
            return self
        image = self.medium.resize((width, height), Image.Resampling.BICUBIC)
        return replace(self, medium=image)

    def at_least(self, side: int) -> Shown:
        """Return an image enlarged so that its shorter side has at least `side` pixels."""
        assert isinstance(self.medium, Image.Image)
        scale = side / min(self.medium.size)
        if scale <= 1:
            return self
        width, height = self.medium.size
        return self.resized(round(width * scale), round(height * scale))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The media of one rollout so far. A tool that changes what it gets changes a copy.

    Example: View((Shown(image, frame),))
    """

    shown: tuple[Shown, ...] = ()
    """Everything that was shown, in order: first the prompt's, then each observation's."""
    access: Access = field(default_factory=Access)
    """What files may be opened."""

    @property
    def num_images(self) -> int:
        """Return how many images were shown so far."""
        return len(self._numbered("image"))

    def image(self, number: int = 1) -> PilImage:
        """Return a copy of an image, from the original at full size.

        Raises:
            Refused: there is no image of this number.
        """
        one = self._find("image", number)
        if one.original is None:
            assert isinstance(one.medium, Image.Image)
            return one.medium.copy()
        return self._cut(one.original, one.box)

    def crop(self, number: int, box: Box) -> Shown:
        """Return what is in a box of an image, cut from the original; `box` is in its unit square.

        Raises:
            Refused: there is no image of this number, or the box has no pixel.
        """
        one = self._find("image", number)
        width, height = one.box.x2 - one.box.x1, one.box.y2 - one.box.y1
        whole = Box(
            one.box.x1 + box.x1 * width,
            one.box.y1 + box.y1 * height,
            one.box.x1 + box.x2 * width,
            one.box.y1 + box.y2 * height,
        )
        original = one.original or number
        return Shown(self._cut(original, whole), original=original, box=whole)

    def video(self, number: int = 1, span: Span | None = None, count: int = 8) -> Video:
        """Return `count` frames of a video, evenly over a span, from its file where it has one.

        Raises:
            Refused: there is no video of this number, or no frame in the span.
            MediaError: the file cannot be read.
        """
        one = self._find("video", number)
        assert isinstance(one.medium, Video)
        span = span or Span(0.0, one.medium.duration)
        if one.source is None:
            return _thin(one.medium, span, count)
        start = one.source.start or 0.0
        part = replace(one.source, start=start + span.start, end=start + span.end)
        config = VideoConfig(fps=1000.0, min_frames=1, max_frames=count)
        found = load_video(part, self.access, config)
        return replace(found, times=tuple(span.start + time for time in found.times))

    def audio(self, number: int = 1, span: Span | None = None) -> Audio:
        """Return a stretch of an audio, or of a video's where no audio was shown.

        Raises:
            Refused: there is no audio of this number, or it has no sample in the span.
            MediaError: the file cannot be read.
        """
        kind: MediaKind = "audio" if self._numbered("audio") else "video"
        one = self._find(kind, number)
        known = one.medium.audio if isinstance(one.medium, Video) else one.medium
        if known is None and one.source is not None:
            known = load_audio(replace(one.source, kind="audio"), self.access, AudioConfig())
        if not isinstance(known, Audio):
            raise Refused(f"video {number} has no sound")
        span = span or Span(0.0, known.duration)
        samples = known.samples[int(span.start * known.rate) : int(span.end * known.rate)]
        if not len(samples):
            raise Refused(f"there is no sound from {span.start:g} to {span.end:g} seconds")
        return Audio(samples.copy(), known.rate)

    def frame(self, kind: MediaKind, number: int) -> Frame:
        """Return the space in which the policy writes of one medium.

        Raises:
            Refused: there is none of this number.
        """
        return self._find(kind, number).frame

    def then(self, shown: Sequence[Shown], frames: Sequence[Frame]) -> View:
        """Return the view after an observation: what it showed, each with the frame it was shown in."""
        pairs = zip(shown, frames, strict=True)
        return replace(self, shown=(*self.shown, *(replace(s, frame=f) for s, f in pairs)))

    def _numbered(self, kind: MediaKind) -> list[Shown]:
        return [one for one in self.shown if kind_of(one.medium) == kind]

    def _find(self, kind: MediaKind, number: int) -> Shown:
        found = self._numbered(kind)
        if not 1 <= number <= len(found):
            there = (
                f"a number from 1 to {len(found)}" if found else f"no {kind}, since there is none"
            )
            raise Refused(f"{kind} {number} does not exist: expected {there}")
        return found[number - 1]

    def _cut(self, original: int, box: Box) -> PilImage:
        """Return a copy of the pixels in a box of an original."""
        image = self._find("image", original).medium
        assert isinstance(image, Image.Image)
        left, top = int(box.x1 * image.width), int(box.y1 * image.height)
        right, bottom = -int(-box.x2 * image.width // 1), -int(-box.y2 * image.height // 1)
        right, bottom = min(right, image.width), min(bottom, image.height)
        if right <= left or bottom <= top:
            raise Refused("the box has no pixel")
        if max(right - left, bottom - top) > MAX_RATIO * min(right - left, bottom - top):
            raise Refused(f"the box is more than {MAX_RATIO} times as long as wide")
        return image.crop((left, top, right, bottom))


def _thin(video: Video, span: Span, count: int) -> Video:
    """Return at most `count` of the decoded frames in a span."""
    inside = [i for i, time in enumerate(video.times) if span.start <= time <= span.end]
    if not inside:
        raise Refused(f"there is no frame from {span.start:g} to {span.end:g} seconds")
    places = np.linspace(0, len(inside) - 1, min(count, len(inside))).round().astype(int)
    kept = [inside[place] for place in dict.fromkeys(places.tolist())]
    return replace(
        video,
        frames=video.frames[kept].copy(),
        times=tuple(video.times[i] for i in kept),
        indices=tuple(video.indices[i] for i in kept),
    )
