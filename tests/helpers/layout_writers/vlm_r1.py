"""VLM-R1's JSONL: a bare box as a list, a fenced list of boxes with labels, and a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.drawn import Written, answer_truth, boxes_truth, draw


def write(folder: Path) -> Written:
    one, two, three = draw(folder)
    listed = [{"bbox_2d": b, "label": n} for b, n in zip(two.boxes, two.labels, strict=True)]
    replies: list[Any] = [one.boxes[0], f"```json\n{json.dumps(listed)}\n```", three.answer]
    questions = ["Where is the disc?", "Find all shapes.", three.question]
    rows = [
        {
            "id": number,
            "image": drawn.name,
            "conversations": [
                {"from": "human", "value": f"<image>{question}"},
                {"from": "gpt", "value": reply},
            ],
        }
        for number, (drawn, question, reply) in enumerate(
            zip((one, two, three), questions, replies, strict=True), start=1
        )
    ]
    (folder / "rec.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    truths = [boxes_truth(one, labels=False), boxes_truth(two), answer_truth(three)]
    return Written({"path": str(folder / "rec.jsonl")}, truths)


def spoil(folder: Path) -> str:
    lines = (folder / "rec.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace("[10, 10, 30, 30]", "[10, 10, 300, 30]")
    (folder / "rec.jsonl").write_text("\n".join(lines))
    return r"rec\.jsonl:2: column 'conversations or solution': box \[10, 10, 300, 30\] lies outside"
