"""CSV with a box in each row, its corners in four columns: TensorFlow's and RetinaNet's."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data.annotations import read_table
from vlmrl.data.files.opening import file_split
from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.typed_rows import to_number
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import (
    annotated,
    ask,
    image_folders,
    locate,
    one_split,
    split_files,
)

CORNERS = ("xmin", "ymin", "xmax", "ymax")
RETINANET = ("filename", *CORNERS, "class")
"""The columns of a file without a header; one with a header has them in any order, among others."""


@dataclass(frozen=True)
class BoxRows(Layout):
    """CSV with a box in each row; the rows of one file are one image.

    With a header: `filename,width,height,class,xmin,ymin,xmax,ymax` (TensorFlow), in any order and among
    others; without one: `path,x1,y1,x2,y2,class` (RetinaNet). Corners are pixels from 0; a row whose
    corners are empty says that its image shows nothing. A folder holds `train.csv`, `val.csv` and so on, or
    `train/_annotations.csv` beside the images, as Roboflow writes it. Other names of columns are for the
    card `table`, where each row is a sample: `columns: {boxes: [left, top, right, bottom]}`.

    Source: https://github.com/datitran/raccoon_dataset, xml_to_csv.py;
    https://github.com/fizyr/keras-retinanet, section "CSV datasets".
    """

    title: ClassVar[str] = "CSV of boxes: TensorFlow, RetinaNet"
    origin: ClassVar[str] = "TensorFlow's xml_to_csv, keras-retinanet, Roboflow"
    fields: ClassVar[Mapping[str, str]] = {
        "image": "filename",
        "boxes": "xmin, ymin, xmax, ymax",
        "box_labels": "class",
        "width": "width",
        "height": "height",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("detection",)

    question: str = ""
    """The question; absent: one that names the classes."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a file or folder holds rows of boxes."""
        file = next(iter(_files(place).values()), None)
        names = _first_line(file) if file else []
        if {*RETINANET} <= {*names}:
            return "rows have `filename`, `class` and `xmin`, `ymin`, `xmax`, `ymax`"
        bare = "lines are `path,x1,y1,x2,y2,class` without a header"
        return bare if len(names) == len(RETINANET) and all(map(_is_number, names[1:5])) else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the splits of a folder's files; of a file the one that its name says, else `train`."""
        return tuple(_files(place))

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the images, each with its rows of boxes, in the order of their first rows."""
        one_split(place, split, self.splits(place))
        file = _files(place)[split]
        images: dict[str, list[Mapping[str, str]]] = {}
        for row in _read(file):
            images.setdefault(row.get("filename", ""), []).append(row)
        names = sorted({r["class"] for rows in images.values() for r in rows if r.get("class")})
        common = {"names": names, "folders": image_folders(file)}
        return [{"boxes": rows, **common, WHERE: rows[0][WHERE]} for rows in images.values()]

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return an image under our keys."""
        first: Mapping[str, str] = row["boxes"][0]
        shown = [each for each in row["boxes"] if any(each.get(key) for key in CORNERS)]
        boxes = [_box(each) for each in shown]
        labels = [each["class"] for each in shown]
        image = locate(place.media_home, first.get("filename"), "filename", row["folders"])
        size = {key: first[key] for key in ("width", "height") if first.get(key)}
        return {
            "id": image,
            "image": image,
            "question": self.question or ask("detection", row["names"], labels),
            "box_space": "pixel",
            **size,
            **annotated("detection", boxes, labels, []),
        }


def _box(row: Mapping[str, str]) -> list[float]:
    where = f"line {row[WHERE].rpartition(':')[2]}: key"
    if missing := [key for key in RETINANET if not row.get(key)]:
        raise UserError(f"{where} {missing[0]!r}: expected a value, got none")
    return [to_number(row[key], f"{where} {key!r}") for key in CORNERS]


def _files(place: DataPlace) -> Mapping[str, Path]:
    """Return the CSV file of each split; of several kinds of files in a folder none."""
    if place.path.is_file():
        return {file_split(place.path): place.path} if place.path.suffix == ".csv" else {}
    kinds = place.once("box files", lambda: split_files(place.path, ".csv"))
    return next(iter(kinds.values())) if len(kinds) == 1 else {}


def _first_line(file: Path) -> Sequence[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return next(csv.reader(opened, skipinitialspace=True), [])
    except (OSError, ValueError, csv.Error):
        return []


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file by their columns.

    Raises:
        UserError: it cannot be read, or a row has another number of cells.
    """
    lines = read_table(file)
    names: Sequence[str] = _first_line(file)
    if not {*RETINANET} <= {*names}:
        names = RETINANET
    else:
        lines = lines[1:]
    for number, cells in lines:
        if len(cells) != len(names):
            raise UserError(f"{file}:{number}: expected {len(names)} cells, got {len(cells)}")
    return [
        {**dict(zip(names, cells, strict=True)), WHERE: f"{file}:{number}"}
        for number, cells in lines
    ]
