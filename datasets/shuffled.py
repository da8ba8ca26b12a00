"""Cut images into tiles, or videos into clips, and ask for their right order.

In a config:

    card: shuffled
    options: {path: data/coco/train.jsonl, column: file_name, root: data/coco/train2017}

Source: Visual Jigsaw, Wu et al. 2025, arXiv 2509.25190 (tiles of 3 x 3 as images of their own, six clips);
Jigsaw-R1, Wang et al. 2025, arXiv 2505.23590 (one image of shuffled tiles).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from PIL import Image

from vlmrl.answers.parsing import is_number
from vlmrl.data import multiple_choice
from vlmrl.data.card import Card
from vlmrl.data.files.hub_download import folder_of, locate
from vlmrl.data.files.opening import open_rows, splits
from vlmrl.data.files.rows import WHERE, cell
from vlmrl.errors import UserError
from vlmrl.media.access import Access, access_given, reference
from vlmrl.media.augmentation import as_bmp
from vlmrl.media.decode import decode
from vlmrl.schema import Demo, Media, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.truths.text import LETTERS

TRIM = 0.1
"""Share of a clip that is cut off at each of its ends, so that no two clips join."""

SIDES = {
    (0, -1): "directly to the left of",
    (0, 1): "directly to the right of",
    (-1, 0): "directly above",
    (1, 0): "directly below",
    (-1, -1): "to the upper left of",
    (-1, 1): "to the upper right of",
    (1, -1): "to the lower left of",
    (1, 1): "to the lower right of",
}
"""Where one tile lies to another, by the signs of its row less the other's and of its column."""


@dataclass(frozen=True)
class Shuffled(Card):
    """In which order do the pieces of an image or a video belong?

    The truth says for each place, row by row or from the beginning on, which piece belongs there; pieces
    are numbered from 1 as they are shown.
    """

    origin: ClassVar[str] = "images or videos of yours"
    verifiers: ClassVar[tuple[str, ...]] = ("order", "choice", "format")

    path: str
    """A file or folder of rows, or `hf://datasets/owner/name` of the Hugging Face hub."""
    column: str = "image"
    """Column with the image or the video, or a dotted path into one."""
    tiles: tuple[int, int] = (3, 3)
    """Rows and columns that an image is cut into."""
    shown: Literal["apart", "whole"] = "apart"
    """`apart`: each tile is an image of its own; `whole`: they lie in one image, shuffled."""
    asked: Literal["order", "pair"] = "order"
    """`order`: that of all pieces; `pair`: how two tiles lie to each other, as the letter of an option."""
    pieces: int = 0
    """Pieces that a video is cut into; 0: the column has images."""
    seconds: str = "duration"
    """Column with the length of a video in seconds."""
    root: str | None = None
    """Folder of relative media paths; absent: that of the data."""
    seed: int = 0
    """Seed of the orders."""

    def __post_init__(self) -> None:
        if min(self.tiles) < 1 or not 2 <= math.prod(self.tiles) <= 64:
            raise ValueError(f"tiles: expected 2 to 64 in rows and columns, got {self.tiles}")
        if self.pieces < 0 or self.pieces == 1:
            raise ValueError(f"pieces: expected 0, or 2 and more, got {self.pieces}")
        if self.pieces and self.asked == "pair":
            raise ValueError(
                "asked: expected order for pieces of a video, got pair, which is about tiles"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split."""
        return open_rows(locate(self.path), split)

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Cut the image or the video of a row and shuffle the pieces.

        Raises:
            UserError: no medium, one that cannot be read or is too small, or a video without its length.
        """
        where = str(row.get(WHERE))
        name = str(row.get("id", where))
        try:
            medium = reference(
                cell(row, self.column), self.media_root(), "video" if self.pieces else "image"
            )
        except UserError as error:
            raise UserError(f"column {self.column!r}: {error}") from error
        count = self.pieces or math.prod(self.tiles)
        draw = random.Random(f"{self.seed} {name}")
        lying = draw.sample(range(count), count)
        shown = self._clips(medium, row, lying) if self.pieces else self._tiles(medium, lying)
        if self.asked == "pair":
            question, truth, answer = self._pair(lying, draw)
        else:
            order = tuple(str(lying.index(piece) + 1) for piece in range(count))
            question, truth = self._question(), Truth(more={"order": order})
            answer = ", ".join(order)
        return Sample(
            id=name,
            source=source,
            parts=(*shown, question),
            truth=truth,
            template="think_answer",
            demo=Demo(text=answer),
            meta={"where": where},
        )

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits of the path."""
        return splits(locate(self.path))

    def media_root(self) -> str:
        """Return `root`, or the folder of the data."""
        return folder_of(self.path) if self.root is None else self.root

    def corpus(self) -> list[str]:
        """Return the question and what an answer is made of."""
        numbers = range(1, (self.pieces or math.prod(self.tiles)) + 1)
        asked = self._question()
        if self.asked == "pair":
            asked = self._pair([n - 1 for n in numbers], random.Random(0))[0]
        return [asked, ", ".join(map(str, numbers))]

    def _question(self) -> str:
        if self.pieces:
            return (
                f"These {self.pieces} clips were cut out of one video and shuffled. Give their numbers in "
                "the order in which they happen."
            )
        return (
            f"{self._cut()} Put it together again: give, for each place of the right image, row by row from "
            "the top left, the number of the tile that belongs there."
        )

    def _cut(self) -> str:
        down, across = self.tiles
        lie = "are numbered from 1 on as they are shown"
        if self.shown == "whole":
            lie = "lie in it in a wrong order, numbered from 1 on, row by row from the top left"
        grid = f"{down} rows and {across} columns of tiles"
        return f"An image was cut into {grid} and shuffled. The tiles {lie}."

    def _pair(self, lying: Sequence[int], draw: random.Random) -> tuple[str, Truth, str]:
        """Ask how two tiles lie in the right image: the question, the truth and its letter."""
        down, across = self.tiles
        first, second = draw.sample(range(len(lying)), 2)
        (y, x), (v, u) = (divmod(lying[tile], across) for tile in (first, second))
        sides = {
            (a, b): text for (a, b), text in SIDES.items() if down > abs(a) and across > abs(b)
        }
        options = tuple(f"Tile {first + 1} is {text} tile {second + 1}." for text in sides.values())
        letter = LETTERS[[*sides].index((_sign(y - v), _sign(x - u)))]
        question = multiple_choice.with_options(
            f"{self._cut()} How do tiles {first + 1} and {second + 1} lie in the right image?",
            options,
        )
        return question, Truth(choice=letter, options=options), letter

    def _tiles(self, medium: Media, lying: Sequence[int]) -> tuple[str | Media, ...]:
        access = access_given(Access(self.media_root()))
        (image,) = decode(Sample(medium.name, "", (medium,), Truth()), access)
        assert isinstance(image, PilImage)
        down, across = self.tiles
        width, height = image.width // across, image.height // down
        if min(width, height) < 1:
            raise UserError(
                f"column {self.column!r}: expected an image of {across} x {down} pixels or more"
            )
        corners = [(i % across * width, i // across * height) for i in range(down * across)]
        pieces = [image.crop((x, y, x + width, y + height)) for x, y in (corners[i] for i in lying)]
        if self.shown == "apart":
            return (*_numbered("Tile", map(_as_media, pieces)),)
        whole = Image.new("RGB", (across * width, down * height))
        for piece, corner in zip(pieces, corners, strict=True):
            whole.paste(piece, corner)
        return (_as_media(whole),)

    def _clips(
        self, medium: Media, row: Mapping[str, Any], lying: Sequence[int]
    ) -> tuple[str | Media, ...]:
        length = cell(row, self.seconds)
        if not is_number(length) or length <= 0:
            raise UserError(f"column {self.seconds!r}: expected seconds, got {length!r:.60}")
        each = length / self.pieces
        starts = ((medium.start or 0.0) + each * i for i in lying)
        clips = (
            replace(medium, start=start + TRIM * each, end=start + (1 - TRIM) * each)
            for start in starts
        )
        return (*_numbered("Clip", clips),)

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write two images and a file that names them."""
        for name, colour in (("a.png", "red"), ("b.png", "blue")):
            Image.new("RGB", (30, 24), colour).save(folder / name)
        (folder / "train.jsonl").write_text('{"image": "a.png"}\n{"image": "b.png"}\n')
        return {"path": str(folder), "tiles": (2, 2)}


def _as_media(image: PilImage) -> Media:
    return Media("image", data=as_bmp(image))


def _numbered(what: str, media: Iterable[Media]) -> Iterator[str | Media]:
    for number, medium in enumerate(media, start=1):
        yield f"{what} {number}:"
        yield medium


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
