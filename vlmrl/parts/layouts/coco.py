"""COCO's JSON and what is written like it: instances, keypoints, captions, LVIS, Objects365."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import Raw

from vlmrl.data.files import text_rows
from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import (
    annotated,
    ask,
    image_folders,
    locate,
    mask_of,
    numbers,
    one_split,
    root_of,
    run_lengths,
    split_files,
    xyxy,
)

# --------------------------------------------------------------------------------------------------
# The images of a file like COCO's, each with its annotations, decoded when asked for.
#
# What is held is where each image and annotation stands in the file, and which belong together: about
# 100 bytes an annotation, whatever its polygons.


log = logging.getLogger(__name__)


class _Named(msgspec.Struct):
    id: Any = None


class _Owned(msgspec.Struct):
    image_id: Any = None


@dataclass(frozen=True)
class CocoIndex:
    """Where things stand: annotations `order[starts[i] : starts[i + 1]]` are of image i.

    `first` is the first annotation, `names` maps ids of categories to their names, `folders` are those
    of the images, as `image_folders` says.
    """

    images: Sequence[Raw]
    annotations: Sequence[Raw]
    order: np.ndarray
    starts: np.ndarray
    first: Mapping[str, Any]
    names: Mapping[Any, str]
    folders: tuple[str, ...]

    @classmethod
    def of(cls, place: DataPlace) -> CocoIndex:
        """Index a file.

        Raises:
            UserError: its lists hold something else than objects; the message names file and key.
        """
        images = _items(place, "images")
        annotations = _items(place, "annotations")
        numbers = {name: n for n, name in enumerate(_field(place, "images", images, _Named))}
        stated = _field(place, "annotations", annotations, _Owned)
        places = (numbers.get(owner, len(images)) for owner in stated)
        owners = np.fromiter(places, np.int32, len(annotations))
        orphans = owners == len(images)
        if orphans.any():  # of a subset's other images, or wrong ids
            stated = text_rows.load(annotations[int(orphans.argmax())]).get("image_id")
            log.warning(
                "%s: %d of %d annotations are left out: no image has their `image_id` (%r, for one)",
                *(place.path, orphans.sum(), len(orphans), stated),
            )
        order = np.argsort(owners, kind="stable").astype(np.int32)
        starts = np.searchsorted(owners[order], np.arange(len(images) + 1))
        first = text_rows.load(annotations[0]) if annotations else {}
        listed = text_rows.load(place.document.get("categories", Raw(b"[]")))
        names = {c.get("id"): str(c.get("name")) for c in listed if isinstance(c, Mapping)}
        return cls(images, annotations, order, starts, first, names, image_folders(place.path))


class CocoRows(Sequence[Mapping[str, Any]]):
    """The images, each as {"image", "objects", "index"}; `non_empty` leaves out those without annotations."""

    def __init__(self, place: DataPlace, index: CocoIndex, non_empty: bool) -> None:
        self._name = place.path.name
        self._index = index
        counts = np.diff(index.starts)
        self._kept = np.flatnonzero(counts) if non_empty else np.arange(len(counts))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        at, held = self._kept[index], self._index
        image = text_rows.load(held.images[at])
        own = held.order[held.starts[at] : held.starts[at + 1]]
        objects = [text_rows.load(held.annotations[number]) for number in own]
        where = f"{self._name} image {image.get('id')}"
        return {"image": image, "objects": objects, "index": held, WHERE: where}


def _items(place: DataPlace, key: str) -> Sequence[Raw]:
    try:
        return text_rows.cut(place.document[key], list[Raw])
    except ValueError as error:
        raise UserError(f"{place.path}: key {key!r}: expected a list: {error}") from error


def _field(place: DataPlace, key: str, items: Sequence[Raw], of: type[msgspec.Struct]) -> Any:
    decode = msgspec.json.Decoder(of).decode
    (name,) = of.__struct_fields__
    for number, item in enumerate(items):
        try:
            yield getattr(decode(item), name)
        except ValueError as error:
            raise UserError(f"{place.path}: key {key!r}, item {number}: {error}") from error


# --------------------------------------------------------------------------------------------------


KEYS = {"caption": "caption", "keypoints": "keypoints"}
"""Task -> the key of an annotation that speaks for it."""
FILES = {"caption": "captions", "keypoints": "person_keypoints"}
"""Task -> what COCO calls its files; those of all others are `instances`."""


@dataclass(frozen=True)
class Coco(Layout):
    """A file with `images`, `annotations` and `categories`, or a folder of one a split; a row is an image.

    A folder: `annotations/instances_train2017.json`, `annotations/instances_val2017.json`, `train2017/`,
    `val2017/`, or Roboflow's `train/_annotations.coco.json`. Of several kinds of files those of the task are
    read, as COCO names them (`instances`, `person_keypoints`, `captions`).

    An image: {"id": 1, "file_name": "a.jpg", "width": 640, "height": 480} (LVIS: `coco_url` in place of
    `file_name`). An annotation: {"image_id": 1, "category_id": 3, "bbox": [x, y, width, height],
    "segmentation": polygons or RLE, "iscrowd": 0}, with `keypoints` [x, y, v, ...] or a `caption` in
    the files of those tasks. Coordinates are pixels from 0. Regions of crowds are left out and
    counted in `meta["crowds"]`.

    Source: https://cocodataset.org/#format-data, https://www.lvisdataset.org/dataset.
    """

    title: ClassVar[str] = "COCO instances, keypoints, captions; LVIS; Objects365"
    origin: ClassVar[str] = "COCO, Lin et al. 2014, arXiv 1405.0312"
    fields: ClassVar[Mapping[str, str]] = {
        "image": "file_name",
        "boxes": "bbox",
        "box_labels": "category_id",
        "masks": "segmentation",
        "keypoints": "keypoints",
        "answer": "caption",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection", "oks", "text")

    task: Literal["", "detection", "segmentation", "keypoints", "caption"] = ""
    """What is asked; absent: captions or keypoints where the file holds them, else detection."""
    question: str = ""
    """The question; absent: one that names the classes."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a file or folder is COCO's."""
        if not place.path.is_dir():
            return "one object with the lists `images` and `annotations`" if _fits(place) else None
        kinds = _kinds(place)
        chosen = [kinds["instances"]] if "instances" in kinds else kinds.values()
        files = [file for kind in chosen for file in kind.values()]
        files.sort(key=lambda file: file.path.stat().st_size)  # the smallest says enough
        if not files or not _fits(files[0]):
            return None
        name = files[0].path.relative_to(place.path)
        return f"{name} is one object with the lists `images` and `annotations`"

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the splits of a folder's files; of a file the one that its name says, else `train`."""
        return tuple(self._files(place)) if place.path.is_dir() else place.splits

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the images, each with its annotations."""
        one_split(place, split, self.splits(place))
        file = self._files(place)[split] if place.path.is_dir() else place
        index = _index(file)
        return CocoRows(file, index, non_empty=self._task(index) in KEYS)

    def media_root(self, place: DataPlace) -> str:
        """Return the folder that the images lie in or below."""
        return str(root_of(place))

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        image, objects = row["image"], row["objects"]
        index: CocoIndex = row["index"]
        task = self._task(index)
        common = {
            "id": image.get("id"),
            "image": locate(root_of(place), _file_name(image), "file_name", index.folders),
            "width": image.get("width"),
            "height": image.get("height"),
            "box_space": "pixel",
        }
        if task == "caption":
            question = self.question or "Describe the image in one sentence."
            answers = [_get(o, "caption", str) for o in objects]
            return {**common, "question": question, "answer": answers}
        single = [o for o in objects if not o.get("iscrowd")]
        common["meta"] = {"crowds": len(objects) - len(single)}
        if task == "keypoints":
            people = []
            for person in (o for o in single if o.get("num_keypoints", 1)):
                spots = numbers(person.get("keypoints"), "keypoints")
                area = person.get("area")
                people.append({"keypoints": spots, **({} if area is None else {"area": area})})
            question = self.question or "Find the keypoints of every person."
            return {**common, "question": question, "keypoints": people}
        names = index.names
        labels = []
        for number in (o.get("category_id") for o in single):
            if number not in names:
                raise UserError(
                    f"key 'category_id': expected an id of `categories`, got {number!r:.60}"
                )
            labels.append(names[number])
        boxes = [xyxy(o.get("bbox"), "bbox") for o in single]
        masks = [_mask(o, image) for o in single] if task == "segmentation" else []
        question = self.question or ask(task, list(names.values()), labels)
        return {**common, "question": question, **annotated(task, boxes, labels, masks)}

    def _files(self, place: DataPlace) -> Mapping[str, DataPlace]:
        """Return the annotation file of each split of a folder.

        Raises:
            UserError: there are several kinds of files, none of which is called as the task's.
        """
        kinds, own = _kinds(place), FILES.get(self.task, "instances")
        if own not in kinds and len(kinds) > 1:
            names = ", ".join(f"{kind!r}" for kind in kinds)
            raise UserError(
                f"{place.path}: annotation files of several kinds, {names}: name a file as path"
            )
        return kinds[own] if own in kinds else next(iter(kinds.values()), {})

    def _task(self, index: CocoIndex) -> str:
        return self.task or next((t for t, key in KEYS.items() if key in index.first), "detection")


def _fits(place: DataPlace) -> bool:
    document = place.document
    return all(memoryview(document.get(key, b""))[:1] == b"[" for key in ("images", "annotations"))


def _kinds(place: DataPlace) -> Mapping[str, Mapping[str, DataPlace]]:
    """Return kind -> split -> annotation file of a folder."""

    def list_files() -> Mapping[str, Mapping[str, DataPlace]]:
        files = split_files(place.path, ".json")
        return {
            kind: {split: DataPlace(file, place.media) for split, file in of_kind.items()}
            for kind, of_kind in files.items()
            if kind != "image_info"  # COCO's test images, which have no annotations
        }

    return place.once("coco files", list_files)


def _index(place: DataPlace) -> CocoIndex:
    return place.once("coco", lambda: CocoIndex.of(place))


def _file_name(image: Mapping[str, object]) -> Any:
    if "file_name" in image or "coco_url" not in image:
        return image.get("file_name")
    return PurePosixPath(urlsplit(str(image["coco_url"])).path).as_posix().lstrip("/")


def _get(annotation: Mapping[str, object], key: str, kind: type) -> Any:
    value = annotation.get(key)
    if not isinstance(value, kind):
        raise UserError(f"key {key!r}: expected {kind.__name__}, got {value!r:.60}")
    return value


def _mask(annotation: Mapping[str, object], image: Mapping[str, object]) -> Any:
    key = "segmentation"
    stated = annotation.get(key)
    if isinstance(stated, list) and stated:
        polygons = [numbers(polygon, key) for polygon in stated]
        if all(len(p) >= 6 and len(p) % 2 == 0 for p in polygons):
            return mask_of(polygons, _get(image, "height", int), _get(image, "width", int))
    if isinstance(stated, Mapping) and {"size", "counts"} <= set(stated):
        if isinstance(stated["counts"], list):
            return run_lengths(stated)
        return {"size": stated["size"], "counts": stated["counts"]}
    raise UserError(f"key {key!r}: expected polygons or run lengths, got {stated!r:.60}")
