"""The same real photos with one object each in six published forms, in a folder `photos`."""

from __future__ import annotations

import base64
import csv
import json
import shutil
from pathlib import Path
from typing import Any

from helpers.example_data import EXAMPLE_DATA

COUNT = 12
QUESTION = "Where is the cell?"
VOC = (
    "<annotation><filename>{name}</filename><size><width>640</width><height>480</height></size><object>"
    "<name>cell</name><difficult>0</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax>"
    "<ymax>{y2}</ymax></bndbox></object></annotation>"
)


def write_photos(folder: Path) -> list[list[int]]:
    """Write the photos in all six forms into `folder/photos`; return each one's box in pixels."""
    home = folder / "photos"
    folders = [home / place for place in ("coco/images", "voc/JPEGImages", "yolo/images/train")]
    for place in (*folders, home / "voc/Annotations", home / "yolo/labels/train"):
        place.mkdir(parents=True)
    source = EXAMPLE_DATA / "bccd"
    lines = (source / "val.jsonl").read_text(encoding="utf-8").splitlines()[:COUNT]
    found = []
    for number, row in enumerate(map(json.loads, lines)):
        name = f"{number}.jpg"
        for place in folders:
            shutil.copy(source / row["images"][0], place / name)
        found.append((name, row["boxes"][0]))
    _coco(home, found)
    _voc_and_yolo(home, found)
    _rows(home, found)
    _tsv(home, found)
    return [box for _, box in found]


def _coco(home: Path, found: list[tuple[str, list[int]]]) -> None:
    images, annotations = [], []
    for number, (name, (x1, y1, x2, y2)) in enumerate(found):
        file = f"images/{name}"
        images.append({"id": number, "file_name": file, "width": 640, "height": 480})
        box = [x1, y1, x2 - x1, y2 - y1]
        annotations.append({"id": number, "image_id": number, "category_id": 1, "bbox": box})
    tree: dict[str, Any] = {"images": images, "annotations": annotations}
    tree["categories"] = [{"id": 1, "name": "cell"}]
    (home / "coco/annotations.json").write_text(json.dumps(tree))


def _voc_and_yolo(home: Path, found: list[tuple[str, list[int]]]) -> None:
    for name, (x1, y1, x2, y2) in found:
        stem = Path(name).stem
        text = VOC.format(name=name, x1=x1 + 1, y1=y1 + 1, x2=x2, y2=y2)
        (home / f"voc/Annotations/{stem}.xml").write_text(text)
        centre = (x1 + x2) / 1280, (y1 + y2) / 960
        numbers = (*centre, (x2 - x1) / 640, (y2 - y1) / 480)
        (home / f"yolo/labels/train/{stem}.txt").write_text("0 " + " ".join(map(repr, numbers)))
    (home / "yolo/data.yaml").write_text("train: images/train\nnames: [cell]\n")


def _rows(home: Path, found: list[tuple[str, list[int]]]) -> None:
    swift, trl = [], []
    for name, box in found:
        asked = {"role": "user", "content": "<image>Find the <ref-object>."}
        said = {"role": "assistant", "content": "<bbox>"}
        objects = {"ref": ["cell"], "bbox": [box], "bbox_type": "real"}
        image = f"coco/images/{name}"
        swift.append({"messages": [asked, said], "images": [image], "objects": objects})
        prompt = [{"role": "user", "content": QUESTION}]
        solution = f"<answer>{json.dumps({'bbox_2d': box})}</answer>"
        trl.append({"prompt": prompt, "image": image, "solution": solution})
    for name, rows in (("swift", swift), ("trl", trl)):
        (home / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _tsv(home: Path, found: list[tuple[str, list[int]]]) -> None:
    with (home / "photos.tsv").open("w", newline="", encoding="utf-8") as file:
        columns = ("index", "image", "question", "A", "B", "answer")
        writer = csv.DictWriter(file, columns, delimiter="\t")
        writer.writeheader()
        for number, (name, (x1, _, x2, _)) in enumerate(found):
            image = base64.b64encode((home / "coco/images" / name).read_bytes()).decode()
            row = {"index": number, "image": image, "question": QUESTION, "A": "left", "B": "right"}
            writer.writerow({**row, "answer": "A" if x1 + x2 < 640 else "B"})
