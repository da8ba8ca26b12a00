"""YOLO's folders: a YAML file, images, and a text file of labels for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layouts.annotated_objects import Task, annotated, ask, one_split
from vlmrl.data.layouts.base import Layout, Place
from vlmrl.errors import UserError

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class Yolo(Layout):
    """A folder with a YAML file (names, train, val), `images/` and `labels/`; a row is an image.

    A line of a label file: `class x_centre y_centre width height`, or for segmentation `class x1 y1
    x2 y2 x3 y3 ...`, in shares of the image. An image without a label file shows no object.

    Source: https://docs.ultralytics.com/datasets/detect, /segment.
    """

    title: ClassVar[str] = "YOLO"
    origin: ClassVar[str] = "Ultralytics YOLO"
    fields: ClassVar[Mapping[str, str]] = {"boxes": "label file", "masks": "label file"}
    verifiers: ClassVar[tuple[str, ...]] = ("detection",)

    task: Task = "detection"
    """What is asked: boxes, or outlines (segmentation labels)."""
    question: str = ""
    """The question; absent: one that names the classes."""

    def recognise(self, place: Place) -> str | None:
        """Return why a folder or its YAML file is YOLO's."""
        file = _config_file(place)
        if file is None:
            return None
        tree = _config(file)
        if "names" not in tree or not {"train", "val", "test"} & set(tree):
            return None
        return f"{file.name} has `names` and `{next(k for k in tree if k in ('train', 'val', 'test'))}`"

    def splits(self, place: Place) -> tuple[str, ...]:
        """Return the splits that the YAML file names."""
        tree = _config(_config_file(place))
        return tuple(split for split in ("train", "val", "test") if tree.get(split))

    def rows(self, place: Place, split: str) -> Rows:
        """Return the images of a split by their names; none is opened."""
        one_split(place, split, self.splits(place))
        file = _config_file(place)
        assert file is not None
        folder = _image_folder(file, _config(file)[split])
        images = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGES)
        return [{"image": path, WHERE: str(_labels_of(path))} for path in images]

    def read(self, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return an image under our keys."""
        names = _names(_config(_config_file(place)))
        path: Path = row["image"]
        labels, boxes, masks = [], [], []
        file = _labels_of(path)
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                label, values = _parse(line, number, names)
                labels.append(label)
                boxes.append(_box(values))
                if self.task == "segmentation":
                    masks.append(_outline(values, number))
        image = path.relative_to(place.home.resolve()).as_posix()
        return {
            "id": image,
            "image": image,
            "question": self.question or ask(self.task, list(names.values()), labels),
            "box_space": "norm1",
            **annotated(self.task, boxes, labels, masks),
        }


def _config_file(place: Place) -> Path | None:
    if place.path.suffix in (".yaml", ".yml"):
        return place.path if place.path.is_file() else None
    names = [n for n in place.names if "/" not in n and Path(n).suffix in (".yaml", ".yml")]
    found = [n for n in ("data.yaml", "dataset.yaml") if n in names] or names
    return place.path / found[0] if found else None


def _config(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _names(tree: Mapping[str, Any]) -> dict[int, str]:
    names = tree["names"]
    return dict(names) if isinstance(names, dict) else dict(enumerate(names))


def _image_folder(file: Path, stated: Any) -> Path:
    """Return the folder of images that a split names, relative to the YAML file; `path` is ignored.

    Others' `path` is a folder of their own machine, or where their tool was started.
    """
    home = file.parent.resolve()
    parts = [p for p in Path(str(stated)).parts if p not in ("..", ".")]
    for start in range(len(parts)):
        folder = home.joinpath(*parts[start:])
        if folder.is_dir() and folder.is_relative_to(home):
            return folder
    raise UserError(f"{file}: expected a folder of images next to it, got {stated!r:.80}")


def _labels_of(image: Path) -> Path:
    """Return the label file of an image: the last folder `images` of its path becomes `labels`."""
    parts = list(image.with_suffix(".txt").parts)
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return Path(*parts)


def _parse(line: str, number: int, names: Mapping[int, str]) -> tuple[str, list[float]]:
    where = f"line {number}"
    try:
        first, *rest = line.split()
        index, values = int(first), [float(n) for n in rest]
    except ValueError as error:
        raise UserError(f"{where}: expected a class and numbers, got {line!r:.60}") from error
    if index not in names:
        raise UserError(f"{where}: key 'class': expected an index of `names`, got {index}")
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise UserError(f"{where}: expected 4 numbers of a box or 6 and more, got {len(values)}")
    return names[index], values


def _box(values: list[float]) -> list[float]:
    if len(values) > 4:
        xs, ys = values[::2], values[1::2]
        return [min(xs), min(ys), max(xs), max(ys)]
    x, y, width, height = values
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def _outline(values: list[float], number: int) -> list[list[float]]:
    if len(values) == 4:
        raise UserError(f"line {number}: a box has no outline: task: detection reads it")
    return [[x, y] for x, y in zip(values[::2], values[1::2], strict=True)]
