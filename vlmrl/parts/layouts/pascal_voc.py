"""Pascal VOC: an XML file of annotations for each image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import ask, locate, one_split, read_xml

_AT_ZERO = re.compile(rb"<[xy]min>\s*0*(\.0*)?\s*</")


@dataclass(frozen=True)
class PascalVoc(Layout):
    """A folder with XML files (`Annotations/`) and images (`JPEGImages/`); a row is an image.

    An object: `<object><name>dog</name><difficult>0</difficult><bndbox><xmin>48</xmin>...`. Pixels count
    from 1 and the last one belongs to the box, so that its left edge is xmin - 1 and its right edge
    xmax. Where a box of the folder begins at 0, as other tools write it, pixels count from 0 and edges are
    edges. Splits are the lists of `ImageSets/Main`; without them all is `train`. Difficult objects
    are left out, as in VOC's own evaluation, and counted in `meta["difficult"]`.

    Source: VOC2012 development kit, section "Annotation files".
    """

    title: ClassVar[str] = "Pascal VOC"
    origin: ClassVar[str] = "Pascal VOC, Everingham et al. 2010"
    fields: ClassVar[Mapping[str, str]] = {
        "boxes": "bndbox",
        "box_labels": "name",
        "image": "filename",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection",)

    question: str = ""
    """The question; absent: one that names the classes in the image."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a folder is VOC's."""
        file = next((name for name in place.names if name.endswith(".xml")), None)
        if file is None:
            return None
        try:
            root = read_xml(place.path / file)
        except UserError:
            return f"{file} is an XML file in Annotations" if "Annotations" in file else None
        return f"{file} is an `annotation`" if root.tag == "annotation" else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the lists of ImageSets/Main that hold all classes; `train` without any."""
        lists = sorted((place.path / "ImageSets/Main").glob("*.txt"))
        return tuple(p.stem for p in lists if "_" not in p.stem) or ("train",)

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the XML files of a split; they are read when a row is."""
        one_split(place, split, self.splits(place))
        listed = place.path / "ImageSets/Main" / f"{split}.txt"
        if listed.is_file():
            names = [line.split()[0] for line in listed.read_text().splitlines() if line.strip()]
            files = [place.path / "Annotations" / f"{Path(name).name}.xml" for name in names]
        else:
            files = sorted(place.path.rglob("*.xml"))
        return [{"file": file, WHERE: str(file)} for file in files]

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        root = read_xml(row["file"])
        objects = root.findall("object")
        first = place.once("first pixel", lambda: _first_pixel(place))
        easy = [o for o in objects if o.findtext("difficult", "0").strip() != "1"]
        labels = [_text(o, "name") for o in easy]
        return {
            "id": row["file"].stem,
            "image": locate(place.media_home, _text(root, "filename"), "filename"),
            "question": self.question or ask("detection", sorted(set(labels)), labels),
            "boxes": [_box(o, first) for o in easy],
            "box_labels": labels,
            "box_space": "pixel",
            "meta": {"difficult": len(objects) - len(easy), "first_pixel": first},
        }


def _text(element: Any, key: str) -> str:
    text = (element.findtext(key) or "").strip()
    if not text:
        raise UserError(f"<{element.tag}>: key {key!r} is missing")
    return text


def _first_pixel(place: DataPlace) -> int:
    """Return 0 where a box of any file begins at 0, else 1: VOC's own coordinates begin at 1."""
    files = sorted(place.path.rglob("*.xml"))
    return 0 if any(_AT_ZERO.search(file.read_bytes()) for file in files) else 1


def _box(element: object, first: int) -> list[float]:
    corners = []
    for key in ("xmin", "ymin", "xmax", "ymax"):
        text = _text(element, f"bndbox/{key}")
        try:
            corners.append(float(text))
        except ValueError as error:
            raise UserError(f"key {key!r}: expected a number, got {text!r:.60}") from error
    x1, y1, x2, y2 = corners
    return [x1 - first, y1 - first, x2, y2]
