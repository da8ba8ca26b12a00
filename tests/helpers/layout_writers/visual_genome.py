"""Visual Genome's region_descriptions.json."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from helpers.drawn import Written, boxes_truth, draw
from vlmrl.schema import Truth


def write(folder: Path) -> Written:
    drawn = draw(folder / "drawn")
    (folder / "VG_100K").mkdir()
    images, truths = [], []
    for number, image in enumerate(drawn, start=1):
        Image.open(folder / "drawn" / image.name).save(folder / f"VG_100K/{number}.jpg")
        regions = []
        for label, (x1, y1, x2, y2) in image.objects:
            region = {"region_id": 1000 * number + len(regions), "image_id": number}
            region |= {"x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
            regions.append({**region, "phrase": f"the {label}"})
        images.append({"id": number, "regions": regions})
        truths += [Truth(boxes=(b,)) for b in boxes_truth(image, labels=False).boxes or ()]
    (folder / "region_descriptions.json").write_text(json.dumps(images))
    return Written({"path": str(folder / "region_descriptions.json")}, truths)


def spoil(folder: Path) -> str:
    file = folder / "region_descriptions.json"
    images = json.loads(file.read_text())
    images[1]["regions"][1]["phrase"] = " "
    file.write_text(json.dumps(images))
    return r"region_descriptions\.json item 1 region 1: key 'phrase': expected a text"
