"""Show a medium on the page: one function for each kind, and the marks drawn on it.

An image is embedded once, however many prompts show it, and only while the report's byte budget
lasts. A new kind of medium is a function in `VIEWS` and a macro of the same name in media.html.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from vlmrl.runs.rollout_rows import Row
from vlmrl.truths.base import Mark
from vlmrl.truths.json_form import marks

T = TypeVar("T")

MAX_SIDE = 480
"""Longest side of an embedded image, pixels."""
MAX_PNG = 8_000
"""Bytes of a PNG from which on an image is embedded with a little loss, as WebP."""
WAVE = (480, 96)
"""Width and height of a waveform, pixels."""
MAX_STRIP = 1280
"""Longest side of a strip of frames, pixels."""


@dataclass(frozen=True, slots=True)
class EmbeddedImage:
    """An embedded image: its id on the page, its data URI, its size in pixels.

    The image of an audio is its waveform from 0 to `seconds`, with its `sound` as a data URI.
    """

    id: str
    uri: str
    width: int
    height: int
    seconds: float = 0.0
    sound: str = ""


@dataclass
class Album:
    """The images of a report by file name, taken from `folder` until `budget` bytes are used."""

    folder: Path
    budget: int
    images: dict[str, EmbeddedImage] = field(default_factory=dict)
    left_out: int = 0
    prefix: str = "m"
    """Begin of the images' ids: albums of one page differ in it."""

    def get(self, name: str) -> EmbeddedImage | None:
        """Return the image of that file; None if it is gone or the budget is used up."""
        # Only a plain name: a row must not reach outside the run folder.
        path = self.folder / Path(name).name
        if name in self.images:
            return self.images[name]
        if not path.is_file() or self.budget <= 0:
            self.left_out += 1
            return None
        embed = _embed_waveform if path.suffix == ".wav" else _embed
        image = embed(path, f"{self.prefix}{len(self.images)}")
        self.budget -= len(image.uri) + len(image.sound)
        self.images[name] = image
        return image


@dataclass(frozen=True, slots=True)
class Shape:
    """A box (x, y, width, height), point (x, y) or outline (x, y of each corner), in image pixels.

    A span (left, width) is drawn on the timeline below the medium, in per cent of its duration.
    """

    kind: str
    numbers: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True)
class MediaView:
    """A medium for the template: `kind` names the macro that renders it."""

    kind: str
    name: str
    image: EmbeddedImage | None = None
    motion: EmbeddedImage | None = None
    """The video in motion."""
    times: tuple[float, ...] = ()
    """For a video: seconds of the frames that are side by side in `image`."""
    duration: float = 0.0
    """Seconds of a video or an audio."""
    sound: EmbeddedImage | None = None
    """The waveform of the part of a video's audio that the model heard."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Media with one layer of shapes: what the macros of media.html read of something on a page."""

    views: tuple[MediaView, ...]
    canvas: MediaView | None
    """The one of `views` on which places and spans are drawn."""
    truth_shapes: tuple[Shape, ...]

    attempts: ClassVar[tuple[()]] = ()
    alone: ClassVar[None] = None

    @property
    def has_spans(self) -> bool:
        """Return whether there is something to show on a timeline."""
        return any(shape.kind == "span" for shape in self.truth_shapes)


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def canvas_of(views: Sequence[MediaView], main_medium: int | None) -> MediaView | None:
    """Return the view on which places are drawn: the main medium's, or the next that has an image."""
    return next((view for view in views[main_medium or 0 :] if view.image), None)


def image(medium: Row, album: Album) -> MediaView:
    """Show a still image."""
    thumbnail = medium.get("thumbnail")
    return MediaView("image", medium["name"], album.get(thumbnail) if thumbnail else None)


def audio(medium: Row, album: Album) -> MediaView:
    """Show an audio: its waveform and a player."""
    stored = medium.get("thumbnail")
    wave = album.get(stored) if stored else None
    return MediaView("audio", medium["name"], wave, duration=wave.seconds if wave else 0.0)


def video(medium: Row, album: Album) -> MediaView:
    """Show a video: a strip of frames above a timeline, the video in motion, and what was heard."""
    strip, motion, sound = (
        album.get(medium[key]) if medium.get(key) else None
        for key in ("thumbnail", "motion", "sound")
    )
    times, duration = medium.get("times", ()), medium.get("duration") or 0.0
    return MediaView("video", medium["name"], strip, motion, tuple(times), duration, sound)


VIEWS: dict[str, Callable[[Row, Album], MediaView]] = {
    "image": image,
    "video": video,
    "audio": audio,
}


def view(medium: Row, album: Album) -> MediaView:
    """Return what the page shows of a medium; a kind that cannot be shown yet is named."""
    show = VIEWS.get(medium["kind"])
    return (
        show(medium, album) if show else MediaView("other", f"{medium['kind']}: {medium['name']}")
    )


def shapes(value: object, view: MediaView | None) -> tuple[Shape, ...]:
    """Return every place and span in typed JSON (`json_form.to_json`) that can be shown, each once.

    On a video a box is drawn on the frame nearest to its time, without a time on every frame.
    """
    if view is None or view.image is None:
        return ()
    drawn = [s for m in marks(value) if _are_numbers(m.numbers) for s in _draw(m, view)]
    return tuple(dict.fromkeys(drawn))


def say_truth(truth: Mapping[str, Any], frame: Mapping[str, Any] | None = None) -> str:
    """Return a truth, typed JSON, without the marks of JSON; places as `say_value` says them."""
    known = {key: value for key, value in truth.items() if value not in (None, False)}
    if known.get("none"):
        return "nothing to find"
    if isinstance(accepted := known.get("text"), list):
        known["text"] = " or ".join(map(str, accepted))
    texts = {key: say_value(value, frame) for key, value in known.items()}
    alone = len(texts) == 1
    return "; ".join(text if alone else f"{key}: {text}" for key, text in texts.items())


def say_value(value: object, frame: Mapping[str, Any] | None = None) -> str:
    """Return typed JSON (`json_form.to_json`) as a reader says it, numbers rounded.

    Places are in the space of the frame, so that they compare with what a model wrote in it; without a
    frame, or one that does not know the size, in the unit square.
    """
    size = _extent(frame or {})
    if size and (drawn := marks(value)):
        return "; ".join(_say_mark(mark, size) for mark in drawn)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {say_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        nested = any(isinstance(item, list | Mapping) for item in value)
        return ("; " if nested else ", ").join(map(say_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _extent(frame: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return what the unit square is as wide and as high as in the space of a frame; None: not known."""
    space = frame.get("space", "pixel")
    if space in ("norm1000", "norm1"):
        return (1000, 1000) if space == "norm1000" else (1, 1)
    prefix = "resized_" if space == "resized" else ""
    width, height = frame.get(f"{prefix}width"), frame.get(f"{prefix}height")
    return (width, height) if width and height else None


def _say_mark(mark: Mark, size: tuple[float, float]) -> str:
    numbers = [
        f"{n if mark.shape == 'span' else n * size[i % 2]:.4g}" for i, n in enumerate(mark.numbers)
    ]
    unit = " s" if mark.shape == "span" else ""
    when = "" if mark.time is None else f" at {mark.time:.4g} s"
    label = f" {mark.label}" if mark.label else ""
    return f"{mark.shape} [{', '.join(numbers)}]{unit}{label}{when}"


def _draw(mark: Mark, view: MediaView) -> list[Shape]:
    """Return a mark in pixels of the view's image, on each frame on which it is drawn."""
    assert view.image is not None
    label = str(mark.label or "")
    if mark.shape == "span":
        if not view.duration:
            return []
        start, end = (min(max(s / view.duration, 0), 1) * 100 for s in mark.numbers)
        return [Shape("span", (round(start, 1), round(end - start, 1)), label)]
    drawn = []
    for left, w, h in _places(view, view.image, mark.time):
        xs, ys = [left + x * w for x in mark.numbers[::2]], [y * h for y in mark.numbers[1::2]]
        if mark.shape == "box":
            numbers = [xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0]]
        else:
            numbers = [n for corner in zip(xs, ys, strict=True) for n in corner]
        drawn.append(Shape(mark.shape, tuple(round(n, 1) for n in numbers), label))
    return drawn


def _places(
    view: MediaView, image: EmbeddedImage, time: object
) -> list[tuple[float, float, float]]:
    """Return (left edge, width, height) in image pixels of each frame that is drawn on."""
    if view.kind == "audio":
        return []
    if not view.times:
        return [(0.0, image.width, image.height)]
    width = image.width / len(view.times)
    cells = list(range(len(view.times)))
    if isinstance(time, (int, float)):
        cells = [min(cells, key=lambda cell: abs(view.times[cell] - time))]
    return [(cell * width, width, image.height) for cell in cells]


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _embed(path: Path, name: str) -> EmbeddedImage:
    with Image.open(path) as image:
        size, data = image.size, path.read_bytes()
        if max(size) > (MAX_STRIP if size[0] > 2 * size[1] else MAX_SIDE):
            small = image.convert("RGB")
            small.thumbnail((MAX_SIDE, MAX_SIDE))
            out = io.BytesIO()
            small.save(out, format="JPEG", quality=82)
            size, data = small.size, out.getvalue()
            kind = "jpeg"
        else:
            kind = {".png": "png", ".webp": "webp"}.get(path.suffix, "jpeg")
            if kind == "png" and len(data) > MAX_PNG:
                out = io.BytesIO()
                image.convert("RGB").save(out, format="WEBP", quality=85)
                data, kind = min(
                    (data, kind), (out.getvalue(), "webp"), key=lambda option: len(option[0])
                )
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return EmbeddedImage(name, uri, *size)


def _embed_waveform(path: Path, name: str) -> EmbeddedImage:
    """Draw the loudest samples of each column up and down from the middle, grey on black."""
    import soundfile  # with the extra `audio`, which a run that heard something had

    samples, rate = soundfile.read(path, dtype="float32")
    width, height = WAVE
    columns = np.array_split(samples, width)
    peaks = np.array([np.abs(column).max() if len(column) else 0.0 for column in columns])
    reach = peaks / max(float(peaks.max()), 1e-9) * (height / 2)
    rows = np.abs(np.arange(height)[:, None] - (height - 1) / 2)
    drawn = Image.fromarray(np.where(rows <= np.maximum(reach, 0.5), 170, 20).astype(np.uint8))
    out = io.BytesIO()
    drawn.save(out, format="PNG")
    uri = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    sound = f"data:audio/wav;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return EmbeddedImage(name, uri, width, height, len(samples) / rate, sound)
