"""The page of `vlmrl data check --images`: rows with the truth drawn on their media, bad ones first.

It is offline like the report, of which it takes the drawing: nothing is loaded, and text from data is
escaped. Which good rows are shown is decided by position alone.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.answers import geometry
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.features.check.data_check import CheckedRow
from vlmrl.media.decode import decode
from vlmrl.pages.media import Album, Sheet, canvas_of, say_truth, shapes, view
from vlmrl.pages.render import render
from vlmrl.runs.rollout_rows import store_media
from vlmrl.schema import Box, Frame, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.system.files import write_bytes
from vlmrl.truths.drawn import draw_places
from vlmrl.truths.json_form import to_json

# --------------------------------------------------------------------------------------------------
# The image of a row with its truth drawn on it, as `vlmrl data explain --image` writes it.


def write_truth_image(source: Source, index: int, path: Path) -> str:
    """Write the image that a row's coordinates refer to, with its truth drawn; return a line about it.

    Raises:
        UserError: the row is bad or its main medium is no image, or the file cannot be written.
    """
    sample = source.sample(index)
    decoded = decode(sample, source.access, source.reading)
    image = None if sample.main_medium is None else decoded[sample.main_medium]
    if not isinstance(image, PilImage):
        raise UserError(f"row {index}: expected an image to draw the truth on, got none")
    drawn, count = draw_places(image, sample.truth)
    try:
        drawn.save(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be written as an image: {error}") from error
    return f"image     {path}, with {count} marks drawn"


# --------------------------------------------------------------------------------------------------


IMAGE_BYTES = 24_000_000
"""Budget of all embedded images, in characters of their data URIs."""
MOST = {"bad": 60, "odd": 60, "good": 120}
"""Rows of each sort that a page shows."""
MAX_TEXT = 600
"""Characters of one text; what is longer is cut."""


@dataclass(frozen=True, slots=True)
class CheckedSheet(Sheet):
    """One row on the page."""

    sort: str
    source: str
    id: str
    row: int
    question: str
    truth: str
    notes: tuple[str, ...]


@dataclass
class ContactSheet:
    """Rows collected while they are checked: `add` is shown every row, `write` makes the page."""

    sheets: list[CheckedSheet] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._album = Album(Path(self._folder.name), IMAGE_BYTES)

    def add(self, row: CheckedRow) -> None:
        """Keep a row if it is bad or odd, or if its turn has come; at most `MOST` of each sort."""
        sort = "bad" if row.sample is None else "odd" if row.odd else "good"
        every = max(1, len(row.source.rows) // MOST["good"])
        if sort == "good" and row.index % every:
            return
        if sum(sheet.sort == sort for sheet in self.sheets) < MOST[sort]:
            self.sheets.append(self._sheet(sort, row))

    def write(self, path: Path, lines: Sequence[str] = ()) -> str:
        """Write the page with lines of text at its top; return a line about it.

        Raises:
            UserError: the file cannot be written.
        """
        ordered = sorted(self.sheets, key=lambda sheet: list(MOST).index(sheet.sort))
        page = render(
            Path(__file__).parent,
            "contact_sheet.html",
            width=300,
            sheets=ordered,
            lines=lines,
            images=self._album.images.values(),
            left_out=self._album.left_out,
        )
        write_bytes(path, page.encode("utf-8", "replace"))
        self._folder.cleanup()
        return f"images    {path}, with {len(ordered)} rows"

    def _sheet(self, sort: str, row: CheckedRow) -> CheckedSheet:
        sample = row.sample or _recover(row)
        media = store_media(Path(self._folder.name), sample, row.decoded)
        views = tuple(view(medium, self._album) for medium in media)
        canvas = canvas_of(views, sample.main_medium)
        truth = to_json(sample.truth)
        main = row.decoded[sample.main_medium or 0] if row.decoded else None
        size = main.size if isinstance(main, PilImage) else (None, None)
        words = say_truth(truth, dict(zip(("width", "height"), size, strict=True)))
        reason = (row.line["reason"],) if row.line["reason"] else ()
        return CheckedSheet(
            sort=sort,
            source=row.source.name,
            id=str(row.line["id"]),
            row=row.index,
            question=_cut(sample.conversation),
            truth=_cut(words) if row.sample else "",
            notes=(*reason, *row.odd),
            views=views,
            canvas=canvas,
            truth_shapes=shapes(truth, canvas),
        )


def _recover(row: CheckedRow) -> Sample:
    """Return what can be shown of a bad row: its medium, and its boxes as far as they lie in it."""
    boxes: list[Box | None] = []
    if row.decoded and isinstance(image := row.decoded[0], PilImage):
        for stated in row.stated:
            with contextlib.suppress(ValueError):  # not finite
                if len(stated.numbers) == 4:
                    boxes.append(
                        geometry.box(stated.numbers, Frame(*image.size, stated.frame.space))
                    )
    inside = tuple(box for box in boxes if box is not None)
    truth = Truth(boxes=inside) if inside else Truth(none=True)
    return Sample(str(row.line["id"]), row.source.name, row.media, truth)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"
