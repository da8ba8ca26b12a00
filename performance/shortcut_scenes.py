"""Drawn scenes with a shortcut: for six rows in ten the question gives the answer away.

"What colour is the circle?" Circles are mostly red, squares green and triangles blue: in 60 % of the rows
of a split, the guessable ones. In the others the colour is one of the other three, so that who guesses by
the kind is always wrong there. Held-out scenes have their shapes in places where no training scene has.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from PIL import Image, ImageDraw

from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.parts.strategies.caption_sufficiency import describe
from vlmrl.schema import Demo, Frame, Media, Sample, Tag, Template, Truth
from vlmrl.truths import prompting

CELL = 7
SIDE = 12 * CELL
SHARE = 0.6
"""Share of guessable rows."""
COLOURS = {
    "red": (235, 45, 45),
    "green": (45, 205, 70),
    "blue": (60, 90, 245),
    "yellow": (240, 220, 60),
}
LAYOUT = Template((Tag("info"), Tag("answer")))
"""How a completion is laid out."""
USUAL = {"circle": "red", "square": "green", "triangle": "blue"}
COUNTS = {"train": 1500, "demos": 1500, "val": 100, "test": 300}


@dataclass(frozen=True)
class ShortcutScenes(Card):
    """A shape whose colour is asked for, and mostly follows from its kind."""

    splits: ClassVar[tuple[str, ...]] = ("train", "demos", "val", "test")
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "format")

    only: Literal["all", "guessable", "unguessable"] = "all"
    """Which rows of the split."""
    read: bool = False
    """Whether a row has a description in place of the image; its colour then does not follow from the
    kind."""
    seed: int = 0
    """Seed of the scenes."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split; nothing is drawn yet."""
        if split not in COUNTS:
            raise UserError(f"expected a split of {', '.join(COUNTS)}, got {split!r}")
        made = [self._row(split, index) for index in range(COUNTS[split])]
        wanted = {"all": (True, False), "guessable": (True,), "unguessable": (False,)}[self.only]
        return [row for row in made if row["guessable"] in wanted]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Draw the scene of a row and ask for the colour."""
        kind, colour = row["kind"], row["colour"]
        caption = f"a {colour} {kind}"
        image = Media("image", data=_draw(kind, colour, row["box"]))
        return Sample(
            id=row["id"],
            source=source,
            parts=(describe(caption) if self.read else image, f"What colour is the {kind}?"),
            truth=Truth(text=(colour,)),
            template="answer_only" if self.read else LAYOUT,
            demo=Demo(text=colour, contents={"info": caption}),
        )

    def corpus(self) -> list[str]:
        """Return questions, and demonstrations as the model is to write them."""
        texts = []
        for row in self.rows("demos")[:300]:
            sample = self.to_sample(row, "corpus")
            assert sample.demo is not None
            texts += [
                sample.conversation,
                prompting.demonstrate(sample.demo, sample.template, Frame(SIDE, SIDE)),
            ]
        return texts

    def _row(self, split: str, index: int) -> dict[str, Any]:
        chance = random.Random(f"{self.seed} {split} {index} {self.read}")
        kind, guessable = chance.choice(list(USUAL)), chance.random() < SHARE
        colour = USUAL[kind]
        if not guessable:
            colour = chance.choice([other for other in COLOURS if other != colour])
        if self.read:
            colour = chance.choice(list(COLOURS))
        width, height = chance.randint(3, 6), chance.randint(3, 6)
        places = [(x, y) for x in range(13 - width) for y in range(13 - height)]
        held_out = split in ("val", "test")
        x, y = chance.choice([place for place in places if (sum(place) % 3 == 0) == held_out])
        return {
            "id": f"shortcut-{split}-{index}",
            "kind": kind,
            "colour": colour,
            "box": (x, y, x + width, y + height),
            "guessable": guessable,
        }


def _draw(kind: str, colour: str, cells: tuple[int, int, int, int]) -> bytes:
    """Draw one shape on dark gray, as the bytes of a BMP file."""
    image = Image.new("RGB", (SIDE, SIDE), (60, 60, 60))
    x1, y1, x2, y2 = (CELL * cell for cell in cells)
    pen, box, fill = ImageDraw.Draw(image), (x1, y1, x2 - 1, y2 - 1), COLOURS[colour]
    if kind == "circle":
        pen.ellipse(box, fill=fill)
    elif kind == "square":
        pen.rectangle(box, fill=fill)
    else:
        pen.polygon([(x1, y2), (x2, y2), ((x1 + x2) // 2, y1)], fill=fill)
    buffer = io.BytesIO()
    image.save(buffer, format="BMP")
    return buffer.getvalue()
