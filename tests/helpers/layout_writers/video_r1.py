"""Video-R1's rows: numbers and free answers in tags, the last one a question with options."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.drawn import Written, answer_truth, draw
from vlmrl.schema import Truth


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "problem_id": number,
            "problem": each.question,
            "data_type": "image",
            "problem_type": "numerical" if each.answer.isdecimal() else "free-form",
            "options": [],
            "solution": f"<answer>{each.answer}</answer>",
            "path": f"./{each.name}",
            "data_source": "drawn",
        }
        for number, each in enumerate(drawn)
    ]
    rows[-1] |= {"problem_type": "multiple choice", "options": ["A. one", "B. two"]}
    rows[-1]["solution"] = "<answer>B</answer>"
    truths = [answer_truth(each) for each in drawn[:-1]]
    (folder / "train.json").write_text(json.dumps(rows))
    choice = Truth(choice="B", options=("one", "two"))
    return Written({"path": str(folder / "train.json")}, [*truths, choice])


def spoil(folder: Path) -> str:
    rows = json.loads((folder / "train.json").read_text())
    rows[1]["problem_type"] = "guess"
    (folder / "train.json").write_text(json.dumps(rows))
    return r"train\.json item 1: key 'problem_type': expected one of multiple choice, numerical"
