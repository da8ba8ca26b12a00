"""Labelme: a JSON file of shapes next to each image."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import (
    Task,
    annotated,
    around,
    ask,
    locate,
    numbers,
    one_split,
)

SHAPES = ("rectangle", "polygon")


@dataclass(frozen=True)
class Labelme(Layout):
    """A folder of JSON files with `shapes` and `imagePath`; a row is an image.

    A shape: {"label": "dog", "shape_type": "rectangle", "points": [[x1, y1], [x2, y2]]}, its corners in
    any order, or a "polygon" of three points and more; pixels from 0. Other shapes are counted in
    `meta["others"]`. An image that is not there is read from its copy in `imageData`.

    Source: https://github.com/wkentaro/labelme, labelme/label_file.py.
    """

    title: ClassVar[str] = "Labelme"
    origin: ClassVar[str] = "Labelme's JSON files"
    fields: ClassVar[Mapping[str, str]] = {
        "boxes": "points",
        "box_labels": "label",
        "masks": "points",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection",)

    task: Task = "detection"
    """What is asked: boxes (those around polygons too), or outlines."""
    question: str = ""
    """The question; absent: one that names the classes in the image."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a folder is Labelme's."""
        for name in [n for n in place.names if n.endswith(".json")][:3]:
            document = DataPlace(place.path / name).document
            if "shapes" in document and "imagePath" in document:
                return f"{name} has `shapes` and `imagePath`"
        return None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the one split."""
        return ("train",)

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the JSON files; they are read when a row is."""
        one_split(place, split, self.splits(place))
        return [{"file": f, WHERE: str(f)} for f in sorted(place.path.rglob("*.json"))]

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        file: Path = row["file"]
        tree = _load(file)
        if not isinstance(tree.get("shapes"), list):
            raise UserError(f"key 'shapes': expected a list, got {tree.get('shapes')!r:.60}")
        shapes = [s for s in tree["shapes"] if s.get("shape_type", "polygon") in SHAPES]
        labels = [str(shape.get("label")) for shape in shapes]
        outlines = [_outline(shape) for shape in shapes]
        return {
            "id": file.relative_to(place.path).with_suffix("").as_posix(),
            "image": _image(file, tree, place.media_home),
            "height": tree.get("imageHeight"),
            "width": tree.get("imageWidth"),
            "question": self.question or ask(self.task, sorted(set(labels)), labels),
            "box_space": "pixel",
            **annotated(self.task, map(around, outlines), labels, outlines),
            "meta": {"others": len(tree["shapes"]) - len(shapes)},
        }


def _image(file: Path, tree: Mapping[str, object], home: Path) -> str:
    """Return the path of an image, which starts from its JSON file; else the copy in `imageData`."""
    stated = str(tree.get("imagePath")).replace("\\", "/")
    beside = Path(os.path.normpath(file.parent / stated))
    if beside.is_file() and beside.is_relative_to(home):
        return str(beside.relative_to(home))
    image = locate(home, tree.get("imagePath"), "imagePath")
    inside = tree.get("imageData")
    return inside if isinstance(inside, str) and not (home / image).is_file() else image


def _load(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read as JSON: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"expected a JSON object, got {type(tree).__name__}")
    return tree


def _outline(shape: Mapping[str, object]) -> list[list[float]]:
    """Return the corners of a shape, those of a rectangle in order around it."""
    points = shape.get("points")
    least = 2 if shape.get("shape_type") == "rectangle" else 3
    if not isinstance(points, list) or len(points) < least:
        raise UserError(f"key 'points': expected at least {least} points, got {points!r:.60}")
    corners = [numbers(point, "points", 2) for point in points]
    if least == 3:
        return corners
    x1, y1, x2, y2 = around(corners)
    return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
