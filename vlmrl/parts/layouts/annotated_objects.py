"""What layouts of annotated objects share: questions, numbers, masks, and where the images lie."""

from __future__ import annotations

import functools
import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree
from xml.parsers import expat

from pycocotools import mask as coco_mask

from vlmrl.data.files.opening import NAMED_SPLITS
from vlmrl.data.layout import DataPlace
from vlmrl.errors import UserError

# --------------------------------------------------------------------------------------------------
# XML files of strangers: no document type is accepted, so that no entity can be expanded.


_PIECE = 2**20


def read_xml(file: Path) -> Any:
    """Return the root element of an XML file.

    Raises:
        UserError: it cannot be read, is no XML, or declares a document type (the way of entity bombs).
    """
    try:
        data = file.read_bytes()
        checker = expat.ParserCreate()
        checker.StartDoctypeDeclHandler = _refuse
        checker.Parse(data, True)
        return ElementTree.fromstring(data)
    except (OSError, ValueError, LookupError, expat.ExpatError, ElementTree.ParseError) as error:
        raise UserError(f"{file.name}: cannot be read as XML: {error}") from error


class XmlParts:
    """Where the children of the root of an XML file stand, so that each can be read alone.

    `root` is the root's name, `places` maps a child's name to its first and last bytes. With `until`,
    what comes after the first child of such a name is not looked at. 16 bytes of memory a child.

    Raises:
        UserError: as for `read_xml`.
    """

    def __init__(self, file: Path, until: tuple[str, ...] = ()) -> None:
        self.root = ""
        self.places: dict[str, tuple[array[int], array[int]]] = {}
        self._file = file
        self._encoding = "utf-8"
        self._level = 0
        self._open: tuple[str, int] | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = _refuse
        self._parser.XmlDeclHandler = self._declare
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._close
        self._parser.DefaultHandler = self._close
        try:
            with file.open("rb") as opened:
                while piece := opened.read(_PIECE):
                    self._parser.Parse(piece, False)
                    if until and {*until} & {*self.places}:
                        return
            self._parser.Parse(b"", True)
        except (OSError, ValueError, LookupError, expat.ExpatError) as error:
            raise UserError(f"{file.name}: cannot be read as XML: {error}") from error

    def read(self, name: str, index: int) -> Any:
        """Return a child of the root by its name and its number among those of that name."""
        starts, ends = self.places[name]
        with self._file.open("rb") as opened:
            opened.seek(starts[index])
            text = opened.read(ends[index] - starts[index])
        return ElementTree.fromstring(text.decode(self._encoding))

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:
        self._encoding = encoding or "utf-8"

    def _start(self, name: str, attributes: object) -> None:
        self._close()
        if self._level == 0:
            self.root = name
        if self._level == 1:
            self.places.setdefault(name, (array("Q"), array("Q")))
            self.places[name][0].append(self._parser.CurrentByteIndex)
        self._level += 1

    def _end(self, name: str) -> None:
        self._close()
        self._level -= 1
        if self._level == 1:
            self._open = (name, self._parser.CurrentByteIndex)

    def _close(self, *_: Any) -> None:
        """Note the end of a child: where what follows it begins."""
        if self._open is not None:
            self.places[self._open[0]][1].append(self._parser.CurrentByteIndex)
            self._open = None


def _refuse(*_: Any) -> None:
    raise ValueError("a document type is declared, which no annotation needs")


def attribute(element: Any, name: str) -> float:
    """Return an attribute that is a number.

    Raises:
        UserError: it is missing or none; the message names it.
    """
    try:
        return float(element.get(name, ""))
    except ValueError as error:
        raise UserError(
            f"<{element.tag}>: key {name!r}: expected a number, got {element.get(name)!r:.60}"
        ) from error


# --------------------------------------------------------------------------------------------------


Task = Literal["detection", "segmentation"]

VERBS = {"segmentation": "Outline", "points": "Point at"}
MAX_NAMED = 40
"""Most classes that a question names; of more, those in the image are named."""
MAX_FOLDERS = 500
"""Folders below the root that are searched for an image."""
ANNOTATION_FOLDERS = ("annotations", "Annotations", "labels")


def ask(task: str, names: Sequence[str], present: Sequence[str]) -> str:
    """Return the question for the objects of an image, which names the classes."""
    listed = names if len(names) <= MAX_NAMED else list(dict.fromkeys(present))
    verb = VERBS.get(task, "Detect")
    of = f" of these classes: {', '.join(listed)}" if listed else ""
    return f"{verb} all objects{of}."


def annotated(
    task: str, boxes: Iterable[object], labels: Sequence[str], masks: Sequence[object]
) -> dict[str, Any]:
    """Return boxes with their labels (xyxy), or masks, under our keys; an empty list is "nothing here"."""
    if task == "segmentation":
        return {"masks": list(masks)}
    return {"boxes": list(boxes), "box_labels": list(labels), "box_format": "xyxy"}


def numbers(value: Any, key: str, count: int | None = None) -> list[float]:
    """Return a list of numbers; `count` is how many there must be.

    Raises:
        UserError: it is none; the message names the key.
    """
    fits = isinstance(value, list | tuple) and (count is None or len(value) == count)
    if not fits or any(isinstance(n, bool) or not isinstance(n, int | float) for n in value):
        wanted = "a list of" if count is None else count
        raise UserError(f"key {key!r}: expected {wanted} numbers, got {value!r:.60}")
    return [float(n) for n in value]


def around(corners: Iterable[Sequence[float]]) -> list[float]:
    """Return the box (xyxy) around corners (x, y)."""
    xs, ys = zip(*corners, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]


def xyxy(stated: object, key: str) -> list[float]:
    """Return the box that is stated as its left upper corner, width and height.

    Raises:
        UserError: it is no four numbers; the message names the key.
    """
    x, y, width, height = numbers(stated, key, 4)
    return [x, y, x + width, y + height]


def mask_of(polygons: Sequence[Sequence[float]], height: int, width: int) -> Any:
    """Return one object's polygons (flat x, y lists in pixels): a polygon, or of several their RLE."""
    if len(polygons) == 1:
        flat = polygons[0]
        return [[x, y] for x, y in zip(flat[::2], flat[1::2], strict=True)]
    parts = coco_mask.frPyObjects([list(p) for p in polygons], height, width)
    return _as_text(coco_mask.merge(parts))


def run_lengths(listed: Mapping[str, object]) -> dict[str, Any]:
    """Return an RLE whose `counts` are a list of numbers as the compressed one.

    Raises:
        UserError: the numbers are no run lengths of a mask of that size.
    """
    size = [int(n) for n in numbers(listed["size"], "size", 2)]
    counts = [int(n) for n in numbers(listed["counts"], "counts")]
    if min(counts, default=-1) < 0 or sum(counts) != size[0] * size[1]:
        raise UserError(f"key 'counts': expected run lengths of {size[1]} x {size[0]} pixels")
    return _as_text(coco_mask.frPyObjects({"size": size, "counts": counts}, *size))


def _as_text(encoded: Mapping[str, Any]) -> dict[str, Any]:
    counts = encoded["counts"]
    text = counts.decode("ascii") if isinstance(counts, bytes) else counts
    return {"size": [int(n) for n in encoded["size"]], "counts": text}


def one_split(place: DataPlace, split: str, known: Sequence[str]) -> None:
    """Refuse a split that a place does not have.

    Raises:
        UserError: the message names what there is.
    """
    if split not in known:
        raise UserError(f"{place.path}: no split {split!r}; there is: {', '.join(known)}")


_OF_SPLIT = re.compile(
    rf"(?:(?P<kind>.+)[-_.])?(?P<folder>(?P<split>{'|'.join(NAMED_SPLITS)})(?:\d{{4}})?)"
)
"""The stem of an annotation file: `instances_val2017`."""


def split_files(folder: Path, ending: str) -> dict[str, dict[str, Path]]:
    """Return kind -> split -> annotation file of a folder: COCO's and Roboflow's names.

    `annotations/instances_val2017.json` is `val` of the kind `instances`; the files may lie in the folder
    itself, too. `valid/_annotations.coco.json` is `valid` of the kind `_annotations.coco`.
    """
    files: dict[str, dict[str, Path]] = {}
    for inner in (folder / "annotations", folder):
        for file in sorted(inner.glob(f"*{ending}")):
            if match := _OF_SPLIT.fullmatch(file.stem):
                files.setdefault(match["kind"] or "", {}).setdefault(match["split"], file)
    for split in NAMED_SPLITS:
        for file in sorted((folder / split).glob(f"_annotations*{ending}")):
            files.setdefault(file.stem, {}).setdefault(split, file)
    return files


def split_of(name: str) -> str | None:
    """Return the split with which a name ends ("cats_test"); None: with none."""
    match = _OF_SPLIT.fullmatch(name)
    return match and match["split"]


def image_folders(file: Path) -> tuple[str, ...]:
    """Return where the images of an annotation file may lie below the root, likeliest first."""
    if match := _OF_SPLIT.fullmatch(file.stem):
        names = dict.fromkeys((match["folder"], match["split"]))
        return ("", *(folder for name in names for folder in (name, f"images/{name}")))
    return ("", file.parent.name)


def root_of(place: DataPlace) -> Path:
    """Return the folder that images are searched in: above `annotations/`, else as `media_home` says."""
    above = place.media is None and place.home.name in ANNOTATION_FOLDERS
    return place.home.parent if above else place.media_home


def find_file(home: Path, stated: object, key: str) -> Path:
    """Return a file or folder that data name, next to them: the longest end of its path that is there.

    Others' paths begin with a folder of their own machine; nothing outside of `home` is opened.

    Raises:
        UserError: there is none; the message names the key.
    """
    inside = home.resolve()
    parts = [p for p in str(stated).replace("\\", "/").split("/") if p not in ("", ".", "..")]
    for start in range(len(parts)):
        file = inside.joinpath(*parts[start:])
        if file.exists() and file.resolve().is_relative_to(inside):
            return file
    raise UserError(f"key {key!r}: expected a path below {home}, got {stated!r:.80}")


def locate(root: Path, name: object, key: str, near: Sequence[str] = ()) -> str:
    """Return the path of an image relative to `root`: as it is named, else wherever the file lies.

    The folders `near` are looked into first.

    Raises:
        UserError: the name is no text, or files of that name lie in several folders.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"key {key!r}: expected the name of an image, got {name!r:.60}")
    name = name.replace("\\", "/")
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    for folder in near:
        if (root / (file := "/".join([*filter(None, [folder]), *parts]))).is_file():
            return file
    for start in range(len(parts)):
        tail = "/".join(parts[start:])
        candidates = [
            f"{folder}{tail}" for folder in _folders(root) if (root / folder / tail).is_file()
        ]
        if tail in candidates or len(candidates) == 1:
            return tail if tail in candidates else candidates[0]
        if candidates:
            raise UserError(
                f"key {key!r}: {name!r} lies in several folders ({candidates[0]}, {candidates[1]}): set root"
            )
    return name


@functools.lru_cache(maxsize=16)
def _folders(root: Path) -> tuple[str, ...]:
    """Return the root ("") and the folders at most three levels below it, each with a slash."""
    folders = [""]
    for folder, inner, _ in os.walk(root):
        level = len(Path(folder).relative_to(root).parts)
        inner[:] = sorted(inner) if level < 3 else []
        if level:
            folders.append(f"{Path(folder).relative_to(root).as_posix()}/")
        if len(folders) > MAX_FOLDERS:
            break
    return tuple(folders)
