"""Label Studio's JSON export."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder / "images")
    tasks = []
    for number, image in enumerate(drawn, start=7):
        results = []
        for label, (x1, y1, x2, y2) in image.objects:
            value = {"x": 100 * x1 / image.width, "y": 100 * y1 / image.height, "rotation": 0}
            value |= {"width": 100 * (x2 - x1) / image.width, "rectanglelabels": [label]}
            value |= {"height": 100 * (y2 - y1) / image.height}
            results.append({"type": "rectanglelabels", "to_name": "image", "value": value})
        cancelled = {"was_cancelled": True, "result": []}
        data = {"image": f"/data/local-files/?d=images/{image.name}"}
        annotations = [cancelled, {"was_cancelled": False, "result": results}]
        tasks.append({"id": number, "data": data, "annotations": annotations})
    (folder / "export.json").write_text(json.dumps(tasks))
    return Written({"path": str(folder / "export.json")}, [boxes_truth(i) for i in drawn])


def spoil(folder: Path) -> str:
    file = folder / "export.json"
    tasks = json.loads(file.read_text())
    tasks[1]["annotations"][1]["result"][0]["value"]["rotation"] = 30
    file.write_text(json.dumps(tasks))
    return r"export\.json item 1: key 'rotation': turned rectangles are not read"
