"""V-Triune's Parquet rows: boxes from 0 to 1000, verifiers and weights for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from helpers.drawn import Drawn, Written, draw, png
from vlmrl.schema import Frame, Truth
from vlmrl.truths import json_form


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "data_source": "drawn",
            "images": [{"bytes": png(each), "path": None}],
            "prompt": [{"role": "user", "content": "<image>Detect all shapes."}],
            "ability": "detection",
            "reward_model": {
                "answer": "",
                "ground_truth": f"<answer> {thousandths(each)} </answer>",
                "accuracy_ratio": 1.0,
                "format_ratio": 0.1,
                "verifier": "detection",
                "verifier_parm": {
                    "verifier_style": "rule",
                    "det_verifier_normalized": True,
                    "det_reward_ratio": {
                        "iou_max_label_first": 1.0,
                        "iou_max_iou_first": 0.0,
                        "iou_completeness": 0.3,
                        "map": 0.0,
                        "map50": 0.0,
                        "map75": 0.0,
                    },
                },
            },
            "extra_info": {"id": each.name, "image_path": each.name},
        }
        for each in drawn
    ]
    put(folder, rows)
    return Written({"path": str(folder / "train.parquet")}, [truth(each) for each in drawn])


def thousandths(drawn: Drawn) -> list[dict[str, Any]]:
    sides = (drawn.width, drawn.height) * 2
    boxes = [[n * 1000 // s for n, s in zip(b, sides, strict=True)] for b in drawn.boxes]
    return [{"bbox_2d": b, "label": n} for b, n in zip(boxes, drawn.labels, strict=True)]


def truth(drawn: Drawn) -> Truth:
    stated = [{"box": item["bbox_2d"], "label": item["label"]} for item in thousandths(drawn)]
    return json_form.read({"boxes": stated}, Frame(space="norm1000"))


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet")


def spoil(folder: Path) -> str:
    rows = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()
    rows[1]["reward_model"]["ground_truth"] = "<answer> </answer>"
    put(folder, rows)
    return r"train\.parquet row 1: key 'reward_model\.ground_truth': expected an answer"
