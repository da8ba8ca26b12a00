"""COCO's instances: a JSON file in `annotations/`, images in a folder next to it."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw

NAMES = {3: "disc", 7: "square"}
NUMBERS = {name: number for number, name in NAMES.items()}


def write(folder: Path) -> Written:
    images, annotations = [], []
    for number, drawn in enumerate(draw(folder / "val2017"), start=40):
        images.append(
            {"id": number, "file_name": drawn.name, "width": drawn.width, "height": drawn.height}
        )
        for label, (x1, y1, x2, y2) in drawn.objects:
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            outline = [[x1, y1, x2, y1, x2, y2, x1, y2]]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": NUMBERS[label],
                    "iscrowd": 0,
                    "segmentation": outline,
                    **box,
                }
            )
    categories = [{"id": number, "name": name} for number, name in NAMES.items()]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    file = folder / "annotations/instances_val2017.json"
    file.parent.mkdir()
    file.write_text(json.dumps(tree), encoding="utf-8")
    return Written({"path": str(file)}, [boxes_truth(d) for d in draw(folder / "val2017")])


def spoil(folder: Path) -> str:
    file = folder / "annotations/instances_val2017.json"
    tree = json.loads(file.read_text(encoding="utf-8"))
    tree["annotations"][1]["bbox"] = [10, 10, "wide"]
    file.write_text(json.dumps(tree), encoding="utf-8")
    return r"instances_val2017\.json image 41: key 'bbox': expected 4 numbers"
