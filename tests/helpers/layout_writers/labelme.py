"""Labelme's JSON files next to the images."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    for image in drawn:
        shapes = [
            {"label": label, "shape_type": "rectangle", "points": [[x2, y1], [x1, y2]]}
            for label, (x1, y1, x2, y2) in image.objects
        ]
        tree = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imageData": None}
        tree |= {"imagePath": f".\\{image.name}"}
        tree |= {"imageHeight": image.height, "imageWidth": image.width}
        (folder / image.name).with_suffix(".json").write_text(json.dumps(tree))
    return Written({"path": str(folder)}, [boxes_truth(image) for image in drawn])


def spoil(folder: Path) -> str:
    file = folder / "b.json"
    tree = json.loads(file.read_text())
    tree["shapes"][0]["points"] = [[1, 2]]
    file.write_text(json.dumps(tree))
    return r"b\.json: key 'points': expected at least 2 points"
