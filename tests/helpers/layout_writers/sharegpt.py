"""LLaMA-Factory's ShareGPT rows, with a system text and a turn before."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "conversations": [
                {"from": "human", "value": "Hello"},
                {"from": "gpt", "value": "Hello"},
                {"from": "human", "value": f"<image>{each.question}"},
                {"from": "gpt", "value": each.answer},
            ],
            "system": "Be brief.",
            "images": [each.name],
        }
        for each in drawn
    ]
    (folder / "train.json").write_text(json.dumps(rows))
    return Written({"path": str(folder / "train.json")}, [answer_truth(each) for each in drawn])


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "train.json").read_text())
    rows[1]["conversations"][3] = {"from": "critic", "value": "{}"}
    (folder / "train.json").write_text(json.dumps(rows))
    return r"train\.json item 1: key 'conversations', turn 4: expected 'from' to be .*'critic'"
