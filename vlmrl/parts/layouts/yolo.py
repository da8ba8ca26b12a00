"""YOLO's folders: a YAML file, images, and a text file of labels for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import annotated, around, ask, find_file, one_split
from vlmrl.system import bounded_yaml

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class Yolo(Layout):
    """A folder with a YAML file (names, train, val), `images/` and `labels/`; a row is an image.

    A line of a label file: `class x_centre y_centre width height`, for segmentation `class x1 y1 x2 y2
    x3 y3 ...`, for pose the box and then `x y` or `x y visibility` of each keypoint (`kpt_shape` of the
    YAML file says how many), in shares of the image. An image without a label file shows no object. A
    split names a folder of images, a text file that lists images, or several of either.

    Source: https://docs.ultralytics.com/datasets/detect, /segment, /pose.
    """

    title: ClassVar[str] = "YOLO"
    origin: ClassVar[str] = "Ultralytics YOLO"
    fields: ClassVar[Mapping[str, str]] = {
        "boxes": "label file",
        "masks": "label file",
        "keypoints": "label file",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection", "oks")

    task: Literal["", "detection", "segmentation", "keypoints"] = ""
    """What is asked; absent: keypoints where the YAML file has `kpt_shape`, else boxes."""
    question: str = ""
    """The question; absent: one that names the classes."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a folder or its YAML file is YOLO's."""
        file = _config_file(place)
        if file is None:
            return None
        tree = _config(file)
        if "names" not in tree or not {"train", "val", "test"} & set(tree):
            return None
        return f"{file.name} has `names` and `{next(k for k in tree if k in ('train', 'val', 'test'))}`"

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the splits that the YAML file names."""
        tree = _config(_config_file(place))
        return tuple(split for split in ("train", "val", "test") if tree.get(split))

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the images of a split by their names; none is opened."""
        one_split(place, split, self.splits(place))
        file = _config_file(place)
        assert file is not None
        stated = _config(file)[split]
        listed = stated if isinstance(stated, list) else [stated]
        images = [image for folder in listed for image in _images(place, folder)]
        return [{"image": path, WHERE: str(_labels_of(path))} for path in images]

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        tree = _config(_config_file(place))
        names = tree["names"]
        names = dict(names if isinstance(names, dict) else enumerate(names))
        task = self.task or ("keypoints" if "kpt_shape" in tree else "detection")
        shape = _keypoint_shape(tree) if task == "keypoints" else None
        path: Path = row["image"]
        file = _labels_of(path)
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        parsed = [_parse(line, n, names, shape) for n, line in enumerate(lines, 1) if line.strip()]
        labels = [label for label, _ in parsed]
        image = path.relative_to(place.home.resolve()).as_posix()
        common = {"id": image, "image": image, "box_space": "norm1"}
        if shape is not None:
            question = self.question or f"Find the keypoints of every {', '.join(names.values())}."
            instances = [
                {**_instance(values, shape[1]), "label": label} for label, values in parsed
            ]
            return {**common, "question": question, "keypoints": instances}
        boxes = [_box(values) for _, values in parsed]
        masks = [_outline(v) for _, v in parsed] if task == "segmentation" else []
        question = self.question or ask(task, list(names.values()), labels)
        return {**common, "question": question, **annotated(task, boxes, labels, masks)}


def _config_file(place: DataPlace) -> Path | None:
    if place.path.suffix in (".yaml", ".yml"):
        return place.path if place.path.is_file() else None
    names = [n for n in place.names if "/" not in n and Path(n).suffix in (".yaml", ".yml")]
    candidates = [n for n in ("data.yaml", "dataset.yaml") if n in names] or names
    return place.path / candidates[0] if candidates else None


def _config(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        tree = bounded_yaml.load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _images(place: DataPlace, stated: object) -> list[Path]:
    """Return the images that a split names: those of a folder, or those that a text file lists.

    What others' `path` begins with is a folder of their own machine, or where their tool was started.
    """
    root = Path(str(_config(_config_file(place)).get("path", ""))).name
    for name in (str(stated), f"{root}/{stated}"):
        try:
            listing = find_file(place.home, name, "train")
        except UserError:
            continue
        if listing.is_dir():
            return sorted(p for p in listing.rglob("*") if p.suffix.lower() in IMAGES)
        lines = listing.read_text(encoding="utf-8").splitlines()
        return [find_file(place.home, line.strip(), listing.name) for line in lines if line.strip()]
    raise UserError(
        f"{_config_file(place)}: expected a folder of images next to it, or a file that lists them, "
        f"got {stated!r:.80}"
    )


def _keypoint_shape(tree: Mapping[str, object]) -> tuple[int, int]:
    shape = tree.get("kpt_shape")
    fits = isinstance(shape, list) and len(shape) == 2 and shape[1] in (2, 3)
    if not fits or not isinstance(shape, list) or not isinstance(shape[0], int):
        raise UserError(f"key 'kpt_shape': expected [number, 2] or [number, 3], got {shape!r:.60}")
    return shape[0], shape[1]


def _labels_of(image: Path) -> Path:
    """Return the label file of an image: the last folder `images` of its path becomes `labels`."""
    parts = list(image.with_suffix(".txt").parts)
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return Path(*parts)


def _parse(
    line: str, number: int, names: Mapping[int, str], shape: tuple[int, int] | None
) -> tuple[str, list[float]]:
    where = f"line {number}"
    try:
        first, *rest = line.split()
        index, values = int(first), [float(n) for n in rest]
    except ValueError as error:
        raise UserError(f"{where}: expected a class and numbers, got {line!r:.60}") from error
    if index not in names:
        raise UserError(f"{where}: key 'class': expected an index of `names`, got {index}")
    if shape is not None:
        if len(values) != (count := 4 + shape[0] * shape[1]):
            raise UserError(
                f"{where}: expected {count} numbers, as kpt_shape says, got {len(values)}"
            )
    elif len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise UserError(f"{where}: expected 4 numbers of a box or 6 and more, got {len(values)}")
    return names[index], values


def _box(values: list[float]) -> list[float]:
    if len(values) > 4:
        return around(zip(values[::2], values[1::2], strict=True))
    x, y, width, height = values
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def _outline(values: list[float]) -> list[list[float]]:
    if len(values) == 4:
        raise UserError("a box has no outline: task: detection reads it")
    return [[x, y] for x, y in zip(values[::2], values[1::2], strict=True)]


def _instance(values: list[float], dims: int) -> dict[str, Any]:
    """Return keypoints as [x, y, v]; without visibility, (0, 0) is not labelled, as in Ultralytics."""
    spots = []
    for at in range(4, len(values), dims):
        x, y = values[at : at + 2]
        seen = int(values[at + 2]) if dims == 3 else 2 * int((x, y) != (0, 0))
        spots.append([x, y, seen] if seen else [0, 0, 0])
    return {"keypoints": spots, "area": values[2] * values[3]}
