"""RefCOCO as the copy `jxu124/refcoco` has it."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw
from vlmrl.schema import Truth


def write(folder: Path) -> Written:
    rows, truths = [], []
    for image in draw(folder / "coco/train2014"):
        for label, (x1, y1, x2, y2) in image.objects:
            annotation = {"bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
            row = {"ref_id": len(rows), "image_path": f"coco/train2014/{image.name}"}
            row |= {"sentences": [{"raw": f"the {label}", "sent": f"the {label}", "sent_id": 1}]}
            rows.append({**row, "raw_anns": json.dumps(annotation), "bbox": [x1, y1, x2, y2]})
        truths += [Truth(boxes=(b,)) for b in boxes_truth(image, labels=False).boxes or ()]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Written({"path": str(folder / "train.jsonl")}, truths)


def spoil(folder: Path) -> str:
    file = folder / "train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["sentences"] = []
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return r"train\.jsonl:2: key 'sentences': expected a list of expressions"
