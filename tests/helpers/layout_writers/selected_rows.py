"""Rows selected from a run, in JSONL; the second has a system turn and a turn before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.drawn import Written, boxes_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder / "rows_media")
    rows: list[dict[str, Any]] = [
        {
            "id": f"drawn-{number}",
            "question": each.question,
            "images": [f"rows_media/{each.name}"],
            "truth": {
                "boxes": [
                    {
                        "box": [
                            box[0] / each.width,
                            box[1] / each.height,
                            box[2] / each.width,
                            box[3] / each.height,
                        ],
                        "label": label,
                    }
                    for label, box in each.objects
                ]
            },
            "selected_from": {"run": "runs/mine", "source": "drawn", "step": number},
        }
        for number, each in enumerate(drawn)
    ]
    rows[1]["system"] = "Be brief."
    rows[1]["history"] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello"},
    ]
    put(folder, rows)
    return Written({"path": str(folder / "train.jsonl")}, [boxes_truth(each) for each in drawn])


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def spoil(folder: Path) -> str:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    rows[1]["truth"] = {"boxes": [[0, 0, 1, 1]]}
    put(folder, rows)
    return r"train\.jsonl:2: key 'truth\.boxes': expected a list of boxes, got \[\[0"
