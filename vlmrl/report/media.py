"""How a medium is shown: one function a kind, and what is drawn upon it.

A picture is embedded once, however many prompts show it, and only while the report's byte budget
lasts. A new kind of medium is a function in `VIEWS` and a macro of the same name in template.html.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from vlmrl.rows import Row

MAX_SIDE = 480
"""Longest side of an embedded picture, pixels."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An embedded picture: its id on the page, its data URI, its size in pixels."""

    id: str
    uri: str
    width: int
    height: int


@dataclass
class Album:
    """The pictures of a report by file name, taken from `folder` until `budget` bytes are used."""

    folder: Path
    budget: int
    pictures: dict[str, Picture] = field(default_factory=dict)
    left_out: int = 0

    def get(self, name: str) -> Picture | None:
        """The picture of that file; None if it is gone or the budget is used up."""
        # Only a plain name: a row must not reach outside the run folder.
        path = self.folder / Path(name).name
        if name in self.pictures:
            return self.pictures[name]
        if not path.is_file() or self.budget <= 0:
            self.left_out += 1
            return None
        picture = _embedded(path, f"m{len(self.pictures)}")
        self.budget -= len(picture.uri)
        self.pictures[name] = picture
        return picture


@dataclass(frozen=True, slots=True)
class Shape:
    """A box (x, y, width, height) or a point (x, y), in pixels of the picture it is drawn on."""

    kind: str
    numbers: tuple[float, ...]
    label: str


@dataclass(frozen=True, slots=True)
class View:
    """A medium for the template: `kind` names the macro that renders it."""

    kind: str
    name: str
    picture: Picture | None = None


def image(medium: Row, album: Album) -> View:
    """A still picture."""
    thumbnail = medium.get("thumbnail")
    return View("image", medium["name"], album.get(thumbnail) if thumbnail else None)


VIEWS: dict[str, Callable[[Row, Album], View]] = {"image": image}


def view(medium: Row, album: Album) -> View:
    """What the page shows of a medium; a kind that cannot be shown yet is named."""
    show = VIEWS.get(medium["kind"])
    return show(medium, album) if show else View("other", f"{medium['kind']}: {medium['name']}")


def shapes(value: Any, picture: Picture | None) -> tuple[Shape, ...]:
    """Every box and point in typed JSON (`rows.to_json`), scaled to the picture, each once."""
    if picture is None:
        return ()
    return tuple(dict.fromkeys(_walk(value, picture.width, picture.height)))


def _walk(value: Any, width: int, height: int) -> list[Shape]:
    match value:
        case list():
            return [shape for part in value for shape in _walk(part, width, height)]
        case {"box": [_, _, _, _] as box} if _are_numbers(box):
            x1, y1, x2, y2 = box
            numbers = (x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height)
            return [_shape("box", numbers, value)]
        case {"point": [_, _] as point} if _are_numbers(point):
            return [_shape("point", (point[0] * width, point[1] * height), value)]
        case dict():
            return [shape for part in value.values() for shape in _walk(part, width, height)]
    return []


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _shape(kind: str, numbers: tuple[float, ...], value: Row) -> Shape:
    return Shape(kind, tuple(round(n, 1) for n in numbers), str(value.get("label") or ""))


def _embedded(path: Path, name: str) -> Picture:
    with Image.open(path) as picture:
        size, data = picture.size, path.read_bytes()
        if max(size) > MAX_SIDE:
            small = picture.convert("RGB")
            small.thumbnail((MAX_SIDE, MAX_SIDE))
            out = io.BytesIO()
            small.save(out, format="JPEG", quality=82)
            size, data = small.size, out.getvalue()
            kind = "jpeg"
        else:
            kind = "png" if path.suffix == ".png" else "jpeg"
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Picture(name, uri, *size)
