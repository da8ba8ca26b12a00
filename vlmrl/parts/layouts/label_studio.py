"""Label Studio's exports JSON (tasks with their annotations) and JSON-MIN (images with their regions)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import Task, annotated, around, ask, locate, numbers

TYPES = {"rectanglelabels": "rectanglelabels", "polygonlabels": "polygonlabels"}
"""Types of results that are read; the key of their labels is the same."""
_UPLOAD = re.compile(r"/data/upload/.*?(?P<mark>[0-9a-f]{6,8}-)(?P<name>[^/]+)")
"""Where Label Studio keeps an uploaded file: eight digits of a random number come before its name."""


@dataclass(frozen=True)
class LabelStudio(Layout):
    """Tasks with `data` and `annotations`; a row is a task with an image.

    A result: {"type": "rectanglelabels", "value": {"x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0,
    "rotation": 0, "rectanglelabels": ["dog"]}}, in percent of the image; "polygonlabels" have `points`.
    Of several annotations the ground truth counts, else the first that was not cancelled. JSON-MIN has
    the values alone, under names of the project: {"image": "...", "tag": [{"x": ..., "rectanglelabels":
    ["dog"]}]}. Turned rectangles and brush masks are refused: export those in COCO's format. Results
    that are no regions (choices, texts) are counted in `meta["others"]`.

    An uploaded image, `/data/upload/1/1a2b3c4d-photo.jpg`, is found under that name or as `photo.jpg`, in
    the folder of the data or in `root`; so is a local file, `/data/local-files/?d=photos/photo.jpg`.

    Source: https://labelstud.io/guide/export, sections JSON and JSON_MIN.
    """

    title: ClassVar[str] = "Label Studio"
    origin: ClassVar[str] = "Label Studio's JSON and JSON-MIN exports"
    fields: ClassVar[Mapping[str, str]] = {"image": "data", "boxes": "value", "masks": "points"}
    verifiers: ClassVar[tuple[str, ...]] = ("detection",)

    task: Task = "detection"
    """What is asked: boxes (those around polygons too), or outlines."""
    question: str = ""
    """The question; absent: one that names the classes in the image."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a file is Label Studio's."""
        if place.has_keys("data", "annotations"):
            fits = isinstance(place.head[0]["data"], Mapping)
            return "rows are tasks with `data` and `annotations`" if fits else None
        lists = [key for row in place.head for key, value in row.items() if _is_regions(value)]
        return f"rows have regions with labels under `{lists[0]}`" if lists else None

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a task under our keys."""
        every = _results(row) if "annotations" in row else _short_results(row)
        results = [r for r in every if str(r.get("type")).endswith("labels")]
        labels = [_label(result) for result in results]
        outlines = [_outline(result) for result in results]
        return {
            "id": row.get("id"),
            "image": _locate(place, _image(row)),
            "question": self.question or ask(self.task, sorted(set(labels)), labels),
            "box_space": "norm1",
            **annotated(self.task, map(around, outlines), labels, outlines),
            "meta": {"others": len(every) - len(results)},
        }


def _is_regions(value: object) -> bool:
    """Return whether a value of JSON-MIN is a list of regions: each has its labels under their type."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, Mapping) and any(k.endswith("labels") for k in v) for v in value)
    )


def _short_results(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    values = [value for regions in row.values() if _is_regions(regions) for value in regions]
    kinds = [next(key for key in value if key.endswith("labels")) for value in values]
    return [{"type": kind, "value": value} for kind, value in zip(kinds, values, strict=True)]


def _results(row: Mapping[str, object]) -> list[Mapping[str, Any]]:
    listed = row.get("annotations")
    if not isinstance(listed, list):
        raise UserError(f"key 'annotations': expected a list, got {listed!r:.60}")
    valid = [a for a in listed if not a.get("was_cancelled")]
    chosen = sorted(valid, key=lambda a: not a.get("ground_truth"))[:1]
    if not chosen:
        raise UserError("key 'annotations': expected one that was not cancelled, got none")
    return list(chosen[0].get("result") or [])


def _image(row: Mapping[str, Any]) -> str:
    """Return the name of a task's image: that of a local file (`?d=`), an upload or an address."""
    data = row.get("data", row)
    texts = [value for value in data.values() if isinstance(value, str)]
    if not texts:
        raise UserError(f"key 'data': expected the address of an image, got {data!r:.60}")
    address = urlsplit(str(data.get("image", texts[0])))
    return parse_qs(address.query).get("d", [address.path])[0]


def _locate(place: DataPlace, name: str) -> str:
    """Return the path of an image below the folder of media, by its name or that before its upload.

    Raises:
        UserError: there is none, or several uploads had that name.
    """
    root, upload = place.media_home, _UPLOAD.fullmatch(name)
    file = locate(root, name, "data")
    if not Path(file).is_absolute() and (root / file).is_file():
        return file
    before = upload["name"] if upload else Path(name).name
    if upload and (root / (file := locate(root, before, "data"))).is_file():
        if len(place.once("uploads", lambda: _uploads(place))[before]) == 1:
            return file
        raise UserError(
            f"key 'data': several uploads were called {before!r}, and {file} is one of them: set root to a "
            "copy of Label Studio's folder media/upload"
        )
    names = " or ".join(dict.fromkeys((Path(name).name, before)))
    raise UserError(
        f"key 'data': expected the image {names} in or below {root}: set root to the folder of the images"
    )


def _uploads(place: DataPlace) -> Mapping[str, set[str]]:
    """Return the uploads of all tasks by the name that their files had before."""
    named: dict[str, set[str]] = defaultdict(set)
    for split in place.splits:
        rows = place.rows(split)
        for index in range(len(rows)):
            try:
                name = _image(rows[index])
            except UserError:  # the loader reports and counts it
                continue
            if upload := _UPLOAD.fullmatch(name):
                named[upload["name"]].add(name)
    return named


def _value(result: Mapping[str, object]) -> Mapping[str, Any]:
    value = result.get("value")
    if not isinstance(value, Mapping):
        raise UserError(f"key 'value': expected an object, got {value!r:.60}")
    return value


def _label(result: Mapping[str, object]) -> str:
    kind = str(result.get("type"))
    if kind == "brushlabels":
        raise UserError(
            "key 'type': brush masks (brushlabels) are not read; export in COCO's format"
        )
    if kind not in TYPES:
        raise UserError(f"key 'type': expected one of {', '.join(TYPES)}, got {kind!r:.40}")
    labels = _value(result).get(kind)
    if not isinstance(labels, list) or not labels:
        raise UserError(f"key {kind!r}: expected a list of labels, got {labels!r:.60}")
    return str(labels[0])


def _outline(result: Mapping[str, object]) -> list[list[float]]:
    value = _value(result)
    if result.get("type") == "polygonlabels":
        points = value.get("points")
        if not isinstance(points, list) or len(points) < 3:
            raise UserError(f"key 'points': expected at least 3 points, got {points!r:.60}")
        return [[n / 100 for n in numbers(point, "points", 2)] for point in points]
    if value.get("rotation") or result.get("image_rotation"):
        raise UserError("key 'rotation': turned rectangles are not read; make them polygons")
    stated = [value.get(key) for key in ("x", "y", "width", "height")]
    x, y, width, height = (n / 100 for n in numbers(stated, "value", 4))
    return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]
