"""YOLO's folders."""

from __future__ import annotations

from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw

NAMES = ["disc", "square"]


def write(folder: Path) -> Written:
    drawn = draw(folder / "images/train")
    (folder / "data.yaml").write_text(
        f"path: /home/somebody/datasets/drawn\ntrain: images/train\nnames: {NAMES}\n"
    )
    labels = folder / "labels/train"
    labels.mkdir(parents=True)
    for image in drawn:
        lines = []
        for label, (x1, y1, x2, y2) in image.objects:
            centre = (x1 + x2) / 2 / image.width, (y1 + y2) / 2 / image.height
            size = (x2 - x1) / image.width, (y2 - y1) / image.height
            lines.append(" ".join(map(repr, (NAMES.index(label), *centre, *size))))
        (labels / image.name).with_suffix(".txt").write_text("\n".join(lines) + "\n")
    return Written({"path": str(folder)}, [boxes_truth(image) for image in drawn])


def spoil(folder: Path) -> str:
    (folder / "labels/train/b.txt").write_text("0 0.5 0.5 0.1 0.1\n9 0.5 0.5 0.1 0.1\n")
    return r"b\.txt: line 2: key 'class': expected an index of `names`, got 9"
