"""GUI-R1's rows: a click in a box, a click at a point, a text that is typed."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, draw
from vlmrl.schema import Box, Point, Truth

CLICK = {"action": "click"}


def write(folder: Path) -> Written:
    rows = [
        {
            "id": number,
            "image": each.name,
            "instruction": each.question,
            "history": "None",
            "task_type": "high",
            "gt_action": "click",
            "gt_bbox": [0.25, 0.25, 0.5, 0.75],
            "gt_input_text": "no input text",
        }
        for number, each in enumerate(draw(folder))
    ]
    rows[1]["gt_bbox"] = [0.5, 0.25]
    rows[2] |= {"gt_action": "TYPE", "gt_bbox": [-100, -100], "gt_input_text": "red"}
    (folder / "train.json").write_text(json.dumps(rows))
    truths = [
        Truth(fields=CLICK, boxes=(Box(0.25, 0.25, 0.5, 0.75),)),
        Truth(fields=CLICK, points=(Point(0.5, 0.25),)),
        Truth(fields={"action": "type"}, text=("red",)),
    ]
    return Written({"path": str(folder / "train.json")}, truths)


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "train.json").read_text())
    rows[1]["gt_bbox"] = [0.5]
    (folder / "train.json").write_text(json.dumps(rows))
    return r"train\.json item 1: key 'gt_bbox': expected two or four numbers, got \[0\.5\]"
