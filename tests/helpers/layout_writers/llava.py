"""LLaVA's JSON."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw


def write(folder: Path) -> Written:
    rows = [
        {
            "id": f"sample {number}",
            "image": f"images/{drawn.name}",
            "conversations": [
                {"from": "human", "value": f"<image>\n{drawn.question}"},
                {"from": "gpt", "value": drawn.answer},
            ],
        }
        for number, drawn in enumerate(draw(folder / "images"))
    ]
    (folder / "llava.json").write_text(json.dumps(rows), encoding="utf-8")
    truths = [answer_truth(drawn) for drawn in draw(folder / "images")]
    return Written({"path": str(folder / "llava.json")}, truths)


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "llava.json").read_text(encoding="utf-8"))
    rows[1]["conversations"][1]["from"] = "bot"
    (folder / "llava.json").write_text(json.dumps(rows), encoding="utf-8")
    return r"llava\.json item 1: key 'conversations', turn 2: expected 'from' to be one of .*'bot'"
