"""ms-swift's rows with objects: one image in pixels, one in the unit square, one with a point for all."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Drawn, Written, boxes_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [row(each, norm=number == 1) for number, each in enumerate(drawn)]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Written({"path": str(folder / "train.jsonl")}, [boxes_truth(each) for each in drawn])


def row(drawn: Drawn, norm: bool) -> dict[str, object]:
    sides = (drawn.width, drawn.height) * 2
    boxes = [[n / s for n, s in zip(b, sides, strict=True)] if norm else b for b in drawn.boxes]
    names = [*drawn.labels, *drawn.labels]
    asked = " and ".join(["<ref-object>"] * len(drawn.labels))
    return {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"<image>Find the {asked} in the image."},
            {"role": "assistant", "content": "<ref-object><bbox>" * len(boxes)},
        ],
        "images": [drawn.name],
        "objects": {"ref": names, "bbox": boxes, "bbox_type": "norm1" if norm else "real"},
    }


def spoil(folder: Path) -> str:
    lines = (folder / "train.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace("norm1", "norm1000")
    (folder / "train.jsonl").write_text("\n".join(lines))
    return r"train\.jsonl:2: key 'objects\.bbox_type': expected real or norm1, got 'norm1000'"
