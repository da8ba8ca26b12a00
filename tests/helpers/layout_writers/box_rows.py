"""TensorFlow's CSV of boxes: a row a box, images in a folder next to it."""

from __future__ import annotations

import csv
from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw

COLUMNS = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")


def write(folder: Path) -> Written:
    drawn = draw(folder / "images")
    with (folder / "train.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for image in drawn:
            for label, box in image.objects:
                table.writerow((image.name, image.width, image.height, label, *box))
    return Written({"path": str(folder / "train.csv")}, [boxes_truth(i) for i in drawn])


def spoil(folder: Path) -> str:
    file = folder / "train.csv"
    file.write_text(file.read_text().replace("c.png,50,50,square,5", "c.png,50,50,square,left"))
    return r"train\.csv:5: line 5: key 'xmin': expected a finite number, got 'left'"
