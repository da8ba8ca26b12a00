"""Three drawn images with labelled boxes and a question: fixtures of all layouts are written from them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from vlmrl.schema import Frame, Truth
from vlmrl.truths import json_form


@dataclass(frozen=True)
class Drawn:
    """An image with what is on it; boxes are xyxy in whole pixels."""

    name: str
    width: int
    height: int
    objects: tuple[tuple[str, tuple[int, int, int, int]], ...]
    question: str
    answer: str

    @property
    def boxes(self) -> list[list[int]]:
        return [[*box] for _, box in self.objects]

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.objects]


@dataclass(frozen=True)
class Written:
    """Options of the card `auto` that read what a writer wrote, and the truths of its rows in order."""

    options: dict[str, Any]
    truths: list[Truth]


IMAGES = (
    Drawn("a.png", 64, 48, (("disc", (4, 6, 30, 40)),), "How many discs are there?", "1"),
    Drawn(
        "b.png",
        80,
        60,
        (("square", (10, 10, 30, 30)), ("disc", (40, 20, 72, 52))),
        "What colour is the square?",
        "red",
    ),
    Drawn("c.png", 50, 50, (("square", (5, 5, 45, 25)),), "Is there a disc?", "no"),
)


def draw(folder: Path) -> tuple[Drawn, ...]:
    """Write the images as PNG files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for drawn in IMAGES:
        (folder / drawn.name).write_bytes(png(drawn))
    return IMAGES


def png(drawn: Drawn) -> bytes:
    image = Image.new("RGB", (drawn.width, drawn.height), "white")
    pen = ImageDraw.Draw(image)
    for label, box in drawn.objects:
        shape = pen.ellipse if label == "disc" else pen.rectangle
        shape(box, fill="blue" if label == "disc" else "red")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def boxes_truth(drawn: Drawn, labels: bool = True) -> Truth:
    """The boxes of an image as a truth, with their labels or without."""
    names = drawn.labels if labels else [None] * len(drawn.boxes)
    stated = [{"box": b, "label": n} for b, n in zip(drawn.boxes, names, strict=True)]
    return json_form.read({"boxes": stated}, Frame(drawn.width, drawn.height))


def answer_truth(drawn: Drawn) -> Truth:
    """The answer to an image's question as a truth: a text, and a number where it is one."""
    stated: dict[str, Any] = {"text": drawn.answer}
    if drawn.answer.isdigit():
        stated["number"] = int(drawn.answer)
    return json_form.read(stated, Frame())
