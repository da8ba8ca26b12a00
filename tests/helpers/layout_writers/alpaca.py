"""Alpaca rows with images, a history of pairs and a system text."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "instruction": "<image>Answer the question.",
            "input": each.question,
            "output": each.answer,
            "images": [each.name],
            "system": "Be brief.",
            "history": [["Hello", "Hello"]],
        }
        for each in drawn
    ]
    (folder / "train.json").write_text(json.dumps(rows))
    return Written({"path": str(folder / "train.json")}, [answer_truth(each) for each in drawn])


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "train.json").read_text())
    rows[1]["history"] = [["Hello"]]
    (folder / "train.json").write_text(json.dumps(rows))
    return r"train\.json item 1: key 'history': expected pairs of texts, got \['Hello'\]"
