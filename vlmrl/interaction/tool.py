"""The contract of a tool: a frozen dataclass whose fields are options and whose call is the function.

The policy reads its name, its docstring and the type hints of `__call__` as a JSON schema. A tool runs
in a process with a time and a memory limit. `Refused` is what the policy is told; whatever else a tool
raises is a fault: the rollout is masked, neither paid nor punished.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from vlmrl.answers import geometry
from vlmrl.config import AudioConfig, VideoConfig
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.media.audio import load_audio
from vlmrl.media.video import load_video
from vlmrl.schema import Box, Frame, Media, MediaKind, Point, Space, Span
from vlmrl.schema.media import Audio, Decoded, PilImage, Video, kind_of
from vlmrl.truths.base import PLACES

# --------------------------------------------------------------------------------------------------
# What a tool sees of a rollout: the media that the policy was shown, originals at full size, no truth.
#
# Images are numbered from 1 in the order in which they were shown, videos and audio likewise. An image
# that was cut out of another one is kept as its box in the original, never as pixels: a crop of a crop
# is cut from the original, and its box is in the original's unit square.


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
        image = self._find("image", number)
        if image.original is None:
            assert isinstance(image.medium, Image.Image)
            return image.medium.copy()
        return self._cut(image.original, image.box)

    def crop(self, number: int, box: Box) -> Shown:
        """Return what is in a box of an image, cut from the original; `box` is in its unit square.

        Raises:
            Refused: there is no image of this number, or the box has no pixel.
        """
        image = self._find("image", number)
        width, height = image.box.x2 - image.box.x1, image.box.y2 - image.box.y1
        whole = Box(
            image.box.x1 + box.x1 * width,
            image.box.y1 + box.y1 * height,
            image.box.x1 + box.x2 * width,
            image.box.y1 + box.y2 * height,
        )
        original = image.original or number
        return Shown(self._cut(original, whole), original=original, box=whole)

    def video(self, number: int = 1, span: Span | None = None, count: int = 8) -> Video:
        """Return `count` frames of a video, evenly over a span, from its file where it has one.

        Raises:
            Refused: there is no video of this number, or no frame in the span.
            MediaError: the file cannot be read.
        """
        shown = self._find("video", number)
        assert isinstance(shown.medium, Video)
        span = span or Span(0.0, shown.medium.duration)
        if shown.source is None:
            return _thin(shown.medium, span, count)
        start = shown.source.start or 0.0
        part = replace(shown.source, start=start + span.start, end=start + span.end)
        config = VideoConfig(fps=1000.0, min_frames=1, max_frames=count)
        video = load_video(part, self.access, config)
        return replace(video, times=tuple(span.start + time for time in video.times))

    def audio(self, number: int = 1, span: Span | None = None) -> Audio:
        """Return a stretch of an audio, or of a video's where no audio was shown.

        Raises:
            Refused: there is no audio of this number, or it has no sample in the span.
            MediaError: the file cannot be read.
        """
        kind: MediaKind = "audio" if self._numbered("audio") else "video"
        shown = self._find(kind, number)
        known = shown.medium.audio if isinstance(shown.medium, Video) else shown.medium
        if known is None and shown.source is not None:
            known = load_audio(replace(shown.source, kind="audio"), self.access, AudioConfig())
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
        return [item for item in self.shown if kind_of(item.medium) == kind]

    def _find(self, kind: MediaKind, number: int) -> Shown:
        shown = self._numbered(kind)
        if not 1 <= number <= len(shown):
            there = f"no {kind}, since there is none"
            if shown:
                there = f"a number from 1 to {len(shown)}"
            raise Refused(f"{kind} {number} does not exist: expected {there}")
        return shown[number - 1]

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
    kept = [inside[index] for index in dict.fromkeys(places.tolist())]
    return replace(
        video,
        frames=video.frames[kept].copy(),
        times=tuple(video.times[i] for i in kept),
        indices=tuple(video.indices[i] for i in kept),
    )


# --------------------------------------------------------------------------------------------------
# Type hints of a call become its JSON schema, and a policy's arguments become values of those types.
#
# A place (`Box`, `Point`, `Span`) is written in the space of the image or video that it refers to, and
# a tool gets it in the unit square of that image, or in seconds: it never sees the model's numbers.


MAX_ITEMS = 256
"""Items that a list of arguments may have."""
MAX_CHARS = 20_000
"""Characters that a text may have."""
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}
PLACED = {Box: "[x1, y1, x2, y2]", Point: "[x, y]", Span: "[start, end], in seconds"}
FrameOf = Callable[[MediaKind, int], Frame]


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """Return what a policy may pass, by name: its type, and whether it is required.

    The first argument (the view of a tool, the state of an environment) is ours.

    Raises:
        UserError: a parameter has no type hint.
    """
    types_by_name = {}
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if name not in hints:
            raise UserError(f"{function.__qualname__}: parameter {name!r} has no type hint")
        types_by_name[name] = (hints[name], parameter.default is parameter.empty)
    return types_by_name


def schema(
    function: Callable[..., Any], name: str, description: str, space: Space
) -> dict[str, Any]:
    """Return a function in OpenAI's form: `{"type": "function", "function": {name, ...}}`."""
    known = parameters(function)
    body = {
        "type": "object",
        "properties": {key: _type_schema(hint, space) for key, (hint, _) in known.items()},
        "required": [key for key, (_, required) in known.items() if required],
    }
    function_body = {"name": name, "description": description, "parameters": body}
    return {"type": "function", "function": function_body}


def to_values(
    function: Callable[..., Any], arguments: Mapping[str, object], frame_of: FrameOf
) -> dict[str, Any]:
    """Return a policy's arguments as the types that a function wants.

    Raises:
        Refused: one is missing, unknown or of another type; the sentence says which.
    """
    known = parameters(function)
    for key in arguments:
        if key not in known:
            expected = ", ".join(known) or "none"
            raise Refused(f"there is no argument {key!r:.60}: expected {expected}")
    for key, (_, required) in known.items():
        if required and key not in arguments:
            raise Refused(f"the argument {key!r} is missing")

    def frame(kind: MediaKind) -> Frame:
        number = _convert(kind, int, arguments.get(kind, 1), frame)
        return frame_of(kind, number)

    def timed(kind: MediaKind) -> Frame:
        if kind != "video" or "audio" not in known:
            return frame(kind)
        number = _convert("audio", int, arguments.get("audio", 1), frame)
        try:
            return frame_of("audio", number)
        except Refused:  # the sound of a video
            return frame_of("video", number)

    return {key: _convert(key, known[key][0], value, timed) for key, value in arguments.items()}


def _type_schema(hint: object, space: Space) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        annotated = _type_schema(inner[0], space)
        texts = filter(None, [inner[1], annotated.get("description")])
        return {**annotated, "description": ", ".join(texts)}
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if hint in PLACED:
        count = 4 if hint is Box else 2
        unit = "" if hint is Span else f" {PLACES[space]}"
        numbers = {"type": "array", "items": {"type": "number"}}
        return {**numbers, "minItems": count, "maxItems": count, "description": PLACED[hint] + unit}
    if origin is Literal:
        return {"type": PLAIN[type(inner[0])], "enum": list(inner)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _type_schema(inner[0], space), "maxItems": MAX_ITEMS}
    if origin in (typing.Union, types.UnionType):
        return _type_schema(next(member for member in inner if member is not type(None)), space)
    raise UserError(f"expected a type that JSON can state, got {hint!r}")


def _convert(key: str, hint: Any, value: Any, frame: Callable[[MediaKind], Frame]) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _convert(key, inner[0], value, frame)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _convert(key, next(i for i in inner if i is not type(None)), value, frame)
    if hint in PLACED:
        return _place(key, hint, value, frame)
    if origin is Literal:
        if value not in inner:
            raise Refused(f"{key}: expected {' or '.join(map(str, inner))}, got {value!r:.60}")
        return value
    if origin in (list, tuple, Sequence):
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise Refused(f"{key}: expected a list of at most {MAX_ITEMS}, got {value!r:.60}")
        return [_convert(key, inner[0], item, frame) for item in value]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e15 else math.inf
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        article = "an" if hint is int else "a"
        raise Refused(f"{key}: expected {article} {PLAIN[hint]}, got {value!r:.60}")
    if hint is str and len(value) > MAX_CHARS:
        raise Refused(f"{key}: expected at most {MAX_CHARS} characters, got {len(value)}")
    return value


def _place(key: str, hint: Any, value: Any, frame: Callable[[MediaKind], Frame]) -> Any:
    count = 4 if hint is Box else 2
    if not isinstance(value, list) or len(value) != count or not all(map(_is_number, value)):
        raise Refused(f"{key}: expected {PLACED[hint]}, got {value!r:.60}")
    numbers = [float(number) for number in value]
    if hint is Box:
        region: Box | Point | Span | None = geometry.box(numbers, frame("image"))
    elif hint is Point:
        region = geometry.point(numbers[0], numbers[1], frame("image"))
    else:
        region = geometry.span(numbers[0], numbers[1], frame("video"))
    if region is None:
        what = "time" if hint is Span else "image"
        raise Refused(f"{key}: expected {PLACED[hint]} inside the {what}, got {value!r:.60}")
    return region


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) < 1e15 and math.isfinite(value)


# --------------------------------------------------------------------------------------------------
# The base of tools: what a policy may call between its turns.


Part = str | Decoded | Shown
"""What a tool returns: a text, an image, a video, audio, or a `Shown` that says where it was cut from."""


@dataclass(frozen=True)
class Tool:
    """A function that the policy may call; `__call__(view, ...)` gets converted arguments."""

    owns_time: ClassVar[bool] = False
    """Whether it runs what the policy wrote, so that running out of time is told to the policy."""
    pure: ClassVar[bool] = True
    """Whether the same call always returns the same, so that a resumed run is exact."""
    waits: ClassVar[bool] = False
    """Whether it asks a server: contract tests then do not call it."""

    def __call__(self, view: View, *args: Any, **kwargs: Any) -> Part | Sequence[Part]:
        """Do what the policy asked for."""
        raise TypeError(f"{type(self).__name__} must define __call__")

    @property
    def function_name(self) -> str:
        """Return the name by which the policy calls it: that of its class in snake_case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that a call may take."""
        return 20.0

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Return its functions in OpenAI's form; `space` is that of the policy's coordinates."""
        paragraph = (inspect.getdoc(type(self)) or "").split("\n\n")[0]
        text = " ".join(paragraph.split())
        return [schema(self.__call__, self.function_name, text, space)]

    def prepare(self) -> None:
        """Load what the first call needs; runs in each worker process, without a time limit."""

    def call(self, name: str, arguments: Mapping[str, object], view: View) -> Part | Sequence[Part]:
        """Call the function of this name with a policy's arguments.

        Raises:
            Refused: the arguments are not those of the function, or it refuses.
        """
        return self(view, **to_values(self.__call__, arguments, view.frame))
