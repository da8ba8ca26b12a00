"""CVAT's own export: `annotations.xml` (CVAT for images 1.1) and a folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pycocotools import mask as coco_mask

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import (
    XmlParts,
    annotated,
    around,
    ask,
    attribute,
    locate,
    one_split,
)

EXTENDED = ("box", "polygon", "mask")
POINTS = ("points",)
MAX_PIXELS = 2**26
"""Most pixels of an image with a brush mask: it is drawn once to be encoded."""


@dataclass(frozen=True)
class Cvat(Layout):
    """Elements `image` with `box`, `polygon` and `mask`; a row is an image.

    A box has `xtl`, `ytl`, `xbr`, `ybr` in pixels from 0, a polygon `points` ("x,y;x,y"), a mask `rle`
    (runs of 0 and 1, row by row) of the rectangle `left`, `top`, `width`, `height`. Polylines, points
    and tags are no objects with an extent and are counted in `meta["others"]`; with `task: points`, the
    points are read and the others counted. Tracks of a video are refused.

    Source: https://docs.cvat.ai/docs/dataset_management/formats/xml_format, version 1.1.
    """

    title: ClassVar[str] = "CVAT for images"
    origin: ClassVar[str] = "CVAT XML annotation format 1.1"
    fields: ClassVar[Mapping[str, str]] = {
        "boxes": "box",
        "box_labels": "label",
        "masks": "polygon",
        "points": "points",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection", "point")

    task: Literal["detection", "segmentation", "points"] = "detection"
    """What is asked: boxes (those around polygons and masks too), outlines, or points."""
    question: str = ""
    """The question; absent: one that names the classes."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a file or folder is CVAT's."""
        file = _file(place)
        if file is None:
            return None
        try:
            parts = XmlParts(file, until=("image", "track"))
        except UserError:
            return None
        held = next((name for name in ("image", "track") if name in parts.places), None)
        fits = parts.root == "annotations" and held is not None
        return f"{file.name} has `annotations` with `{held}`" if fits else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the one split."""
        return ("train",)

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the images."""
        one_split(place, split, self.splits(place))
        file = _file(place)
        assert file is not None
        parts = place.once("cvat", lambda: XmlParts(file))
        if "track" in parts.places:
            raise UserError(
                f"{file}: expected images, got tracks of a video: export as CVAT for images 1.1"
            )
        meta = parts.read("meta", 0) if "meta" in parts.places else []
        names = [name.text or "" for task in meta for name in task.iterfind("labels/label/name")]
        return ImageRows(file, parts, tuple(names))

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        element = row["element"]
        height, width = (int(attribute(element, key)) for key in ("height", "width"))
        shapes = [s for s in element if s.tag in (POINTS if self.task == "points" else EXTENDED)]
        labels = [str(shape.get("label")) for shape in shapes]
        if self.task == "points":
            pairs = zip(shapes, labels, strict=True)
            spots = [{"point": [*at], "label": name} for s, name in pairs for at in _points(s)]
            truth: dict[str, Any] = {"points": spots}
        elif self.task == "segmentation":
            truth = {"masks": [_mask(shape, (height, width)) for shape in shapes]}
        else:
            truth = annotated(self.task, map(_box, shapes), labels, [])
        return {
            "id": element.get("name"),
            "image": locate(place.media_home, element.get("name"), "name"),
            "height": height,
            "width": width,
            "question": self.question or ask(self.task, row["names"], labels),
            "box_space": "pixel",
            **truth,
            "meta": {"others": len(element) - len(shapes)},
        }


class ImageRows(Sequence[Mapping[str, Any]]):
    """The images of an export, each read from its place in the file."""

    def __init__(self, file: Path, parts: XmlParts, names: tuple[str, ...]) -> None:
        self._file, self._parts, self._names = file, parts, names

    def __len__(self) -> int:
        return len(self._parts.places["image"][0])

    def __getitem__(self, index: Any) -> Any:
        element = self._parts.read("image", range(len(self))[index])
        where = f"{self._file} image {element.get('name')}"
        return {"element": element, "names": list(self._names), WHERE: where}


def _file(place: DataPlace) -> Path | None:
    if place.path.suffix == ".xml":
        return place.path if place.path.is_file() else None
    return place.path / "annotations.xml" if "annotations.xml" in place.names else None


def _box(shape: Any) -> list[float]:
    if shape.tag == "polygon":
        return around(_points(shape))
    if shape.tag == "mask":
        left, top, width, height = (attribute(shape, k) for k in ("left", "top", "width", "height"))
        return [left, top, left + width, top + height]
    if attribute(shape, "rotation") if shape.get("rotation") else 0:
        raise UserError("<box>: key 'rotation': turned boxes are not read; make them polygons")
    return [attribute(shape, key) for key in ("xtl", "ytl", "xbr", "ybr")]


def _points(shape: Any) -> list[tuple[float, float]]:
    text = shape.get("points", "")
    try:
        pairs = [tuple(map(float, pair.split(","))) for pair in text.split(";")]
        return [(x, y) for x, y in pairs]
    except ValueError as error:
        raise UserError(
            f"<{shape.tag}>: key 'points': expected 'x,y;x,y', got {text!r:.60}"
        ) from error


def _mask(shape: Any, size: tuple[int, int]) -> Any:
    if shape.tag == "polygon":
        return [list(point) for point in _points(shape)]
    if shape.tag == "box":
        x1, y1, x2, y2 = _box(shape)
        return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
    left, top, width, height = (
        int(attribute(shape, k)) for k in ("left", "top", "width", "height")
    )
    try:
        runs = [int(n) for n in shape.get("rle", "").split(",")]
    except ValueError:
        runs = []
    inside = 0 <= left <= left + width <= size[1] and 0 <= top <= top + height <= size[0]
    if min(runs, default=-1) < 0 or sum(runs) != width * height or not inside:
        raise UserError(
            f"<mask>: key 'rle': expected runs of {width} x {height} pixels in the image"
        )
    if size[0] * size[1] > MAX_PIXELS:
        raise UserError(f"<mask>: the image has more than {MAX_PIXELS} pixels")
    whole = np.zeros(size, np.uint8, order="F")
    drawn = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.uint8).reshape(height, width)
    whole[top : top + height, left : left + width] = drawn
    encoded = coco_mask.encode(whole)
    return {"size": list(size), "counts": encoded["counts"].decode("ascii")}
