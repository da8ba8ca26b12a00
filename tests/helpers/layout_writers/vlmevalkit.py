"""VLMEvalKit's TSV: an image as base64 with options, one without, and one shared by its index."""

from __future__ import annotations

import base64
import csv
from pathlib import Path
from typing import Any

from helpers.drawn import Written, answer_truth, draw, png
from vlmrl.schema import Truth

COLUMNS = ("index", "image", "question", "hint", "A", "B", "C", "D", "answer", "category")


def write(folder: Path) -> Written:
    one, two, three = draw(folder)
    shown = [base64.b64encode(png(each)).decode() for each in (one, two)]
    rows: list[dict[str, Any]] = [
        {"index": 0, "image": shown[0], "question": one.question, "answer": one.answer},
        {"index": 1, "image": shown[1], "question": two.question, "answer": "B"},
        {"index": 2, "image": "1", "question": 'A line\nand a "disc"?', "answer": three.answer},
    ]
    rows[1] |= {"A": "blue", "B": "red", "C": "green", "hint": "Look\ttwice."}
    put(folder, rows)
    choice = Truth(choice="B", options=("blue", "red", "green"), text=("B", "red"))
    truths = [answer_truth(one), choice, answer_truth(three)]
    return Written({"path": str(folder / "Drawn.tsv")}, truths)


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "Drawn.tsv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)


def spoil(folder: Path) -> str:
    with (folder / "Drawn.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    rows[1]["answer"] = "E"
    put(folder, rows)
    return r"Drawn\.tsv:3: key 'answer': 'E' is none of the options blue, red, green"
