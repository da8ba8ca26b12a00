"""Items to be written in any layout: media with a question, and an answer in words or boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.drawn import IMAGES, png
from vlmrl.schema import Frame, Truth
from vlmrl.truths import json_form

Medium = tuple[str, bytes]
"""File name and content."""


@dataclass(frozen=True)
class Item:
    """Media of one kind, what is asked about them, and what is true: an answer, else the boxes.

    Boxes are xyxy in pixels of the only image; `phrase` is what a question about one box refers to.
    """

    media: tuple[Medium, ...]
    size: tuple[int, int]
    question: str
    answer: str | None
    boxes: tuple[tuple[float, ...], ...] = ()
    labels: tuple[str, ...] = ()
    kind: str = "image"
    phrase: str = ""

    @property
    def name(self) -> str:
        return self.media[0][0]

    def holds(self) -> str:
        """What a layout must be able to write: answer, box or boxes."""
        if self.answer is not None:
            return "answer"
        return "box" if len(self.boxes) == 1 else "boxes"


def truth_of(item: Item, labels: bool = True) -> Truth:
    """The truth of an item as the package's own JSON form states it, with the labels or without."""
    frame = Frame(*item.size)
    if item.answer is None:
        names = item.labels if labels else [None] * len(item.boxes)
        stated = [{"box": [*b], "label": n} for b, n in zip(item.boxes, names, strict=True)]
        truth = json_form.read({"boxes": stated}, frame)
        return truth if stated else Truth(boxes=(), none=True)
    number = item.answer.replace(",", "")
    more = {"number": float(number)} if number.replace(".", "", 1).isdigit() else {}
    return json_form.read({"text": item.answer, **more}, frame)


def drawn_items() -> list[Item]:
    """The drawn images: three with answers, then three with boxes, the last of one box each."""
    answers = [
        Item(((d.name, png(d)),), (d.width, d.height), d.question, d.answer, (), ()) for d in IMAGES
    ]
    found = [
        Item(
            ((d.name, png(d)),),
            (d.width, d.height),
            "Find all shapes." if len(d.boxes) > 1 else f"Where is the {d.labels[0]}?",
            None,
            tuple((*map(float, box),) for box in d.boxes),
            tuple(d.labels),
            phrase=f"the {d.labels[0]}",
        )
        for d in IMAGES
    ]
    return [*answers, *found]


@dataclass(frozen=True)
class Form:
    """One published form of a data set: how items are written in it, and what comes back.

    `write` returns options of the card `auto`; `holds` are kinds of item, `kinds` kinds of media;
    `prompt` is the question that comes back, `truth` what is true.
    """

    name: str
    layout: str
    write: Callable[[Path, Sequence[Item]], dict[str, Any]]
    holds: tuple[str, ...] = ("answer", "box", "boxes")
    kinds: tuple[str, ...] = ("image",)
    several: bool = False
    """Whether a row may have several media."""
    prompt: Callable[[Item], str] = lambda item: item.question
    keeps_prompt: bool = True
    labels: bool = True
    truth: Callable[[Item], Truth] | None = None

    def takes(self, items: Sequence[Item]) -> list[Item]:
        """The items that this form can hold."""
        return [
            item
            for item in items
            if item.holds() in self.holds
            and item.kind in self.kinds
            and (self.several or len(item.media) == 1)
        ]

    def expected(self, item: Item) -> Truth:
        """What must come back as true."""
        return self.truth(item) if self.truth else truth_of(item, self.labels)


def put_media(folder: Path, items: Sequence[Item]) -> None:
    """Write the media of items into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in items:
        for name, content in item.media:
            (folder / name).write_bytes(content)
