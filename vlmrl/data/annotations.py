"""A check on the places that data state before they are converted: is the space the declared one?

`noting_places` hands them on as they are stated, so that `vlmrl data check` can judge their space
over all rows, refused ones too.
"""

from __future__ import annotations

import contextlib
import csv
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Media, Truth
from vlmrl.truths import json_form

# --------------------------------------------------------------------------------------------------
# What cards of sound events share: names of classes, and the names that a question offers.


def read_table(path: Path, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """Read the lines of a CSV or TSV file that hold cells and no comment (`#`), with their numbers.

    Raises:
        UserError: it cannot be read.
    """
    mark = '"' if delimiter == "," else None  # a TSV file quotes nothing
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, delimiter=delimiter, quotechar=mark, skipinitialspace=True)
            return [(table.line_num, row) for row in table if row and not row[0].startswith("#")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: {error}") from error


def class_names(path: Path) -> dict[str, str]:
    """Machine id -> name, of `class_labels_indices.csv` or `mid_to_display_name.tsv` of AudioSet.

    Commas in a name become ` / `, since answers list names between commas.

    Raises:
        UserError: it cannot be read, or a line has not 3 (.csv: index,mid,display_name) or 2 cells.
    """
    comma = path.suffix == ".csv"
    wanted = 3 if comma else 2
    names = {}
    for number, row in read_table(path, "," if comma else "\t"):
        if len(row) != wanted:
            raise UserError(f"{path}:{number}: expected {wanted} cells, got {row!r:.60}")
        if row[-2] != "mid":  # the heading
            names[row[-2]] = " / ".join(part.strip() for part in row[-1].split(","))
    return names


def named(mids: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Return the names of machine ids, each once.

    Raises:
        UserError: one is unknown.
    """
    mids = list(dict.fromkeys(mids))
    for mid in mids:
        if mid not in names:
            raise UserError(f"label {mid!r:.40} is not among the {len(names)} classes")
    return [names[mid] for mid in mids]


def offer(right: Iterable[str], names: Mapping[str, str], count: int, rng: random.Random) -> str:
    """`count` names for a question, by the alphabet, separated by semicolons: right ones and others.

    At least half of them are wrong, however many are right; 0: none are offered.
    """
    if not count:
        return ""
    right = list(right)
    others = sorted(set(names.values()) - set(right))
    drawn = rng.sample(others, min(len(others), max(count - len(right), len(right))))
    return "; ".join(sorted([*right, *drawn]))


# --------------------------------------------------------------------------------------------------
# What cards of published video data share: finding a video's file, and spans checked against it.


ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov")


def video_named(folder: Path, name: str) -> Media:
    """Find the video `name` in a folder, whatever its ending; a missing one is called `.mp4`.

    Raises:
        UserError: the name leads out of the folder.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"expected the name of a video, got {name!r}")
    for ending in ENDINGS:
        if (path := folder / f"{name}{ending}").is_file():
            return Media("video", path=str(path))
    return Media("video", path=str(folder / f"{name}.mp4"))


def spans_truth(spans: Sequence[object], duration: float | None, **others: Any) -> Truth:
    """Build a truth of spans in seconds; those past the video's end are cut at `duration`.

    Raises:
        UserError: a span is no two numbers, runs backwards or begins behind the end.
    """
    cut = []
    for span in spans:
        if duration is not None and isinstance(span, list | tuple) and len(span) == 2:
            start, end = span
            span = [start, min(end, duration)] if isinstance(end, int | float) else span
        cut.append(span)
    return json_form.read({"spans": cut, **others}, Frame(duration=duration))


# --------------------------------------------------------------------------------------------------


SLACK_PX = 1.0
"""How far outside of its image a true box may reach; in `norm1` a thousandth."""


@dataclass(frozen=True, slots=True)
class StatedPlace:
    """A box (x1, y1, x2, y2) or a point (x, y) as a row states it, and the frame that it is said to be in."""

    numbers: tuple[float, ...]
    frame: Frame


_noted: ContextVar[list[StatedPlace] | None] = ContextVar("noted_places", default=None)


@contextlib.contextmanager
def noting_places() -> Iterator[list[StatedPlace]]:
    """Collect the boxes and points that cards read meanwhile, before any check refuses them."""
    notes: list[StatedPlace] = []
    token = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(token)


def check_inside(boxes: Sequence[Any], frame: Frame) -> None:
    """Refuse xyxy boxes in `frame.space` that run backwards or reach more than a pixel outside.

    A model's box may be clipped and turned; a true box like that is in another space or format than
    declared. Anything that is not a list of four numbers is left to `json_form.read`.

    Raises:
        UserError: names the box and the image.
    """
    width, height = geometry.extent(frame)
    slack = SLACK_PX if frame.space != "norm1" else 1e-3
    stated = [box for box in boxes if _are_numbers(box, 4)]
    _note(stated, frame)
    for box in stated:
        x1, y1, x2, y2 = box
        if x1 >= x2 or y1 >= y2:
            raise UserError(f"expected a box with x1 < x2 and y1 < y2, got {list(box)}")
        if min(x1, y1) < -slack or x2 > width + slack or y2 > height + slack:
            raise UserError(
                f"box {list(box)} lies outside 0..{width:g} x 0..{height:g}: expected x1, y1, x2, y2 in "
                f"the space {frame.space!r}"
            )


def note_points(value: object, frame: Frame) -> None:
    """Hand the points that a row states to `noting_places`; `json_form.read` checks them."""
    items = value if isinstance(value, list) else []
    bare = [item.get("point") if isinstance(item, Mapping) else item for item in items]
    _note([point for point in bare if _are_numbers(point, 2)], frame)


def _note(places: Sequence[Any], frame: Frame) -> None:
    noted = _noted.get()
    if noted is not None:
        noted += [StatedPlace(tuple(map(float, numbers)), frame) for numbers in places]


def _are_numbers(place: object, count: int) -> bool:
    return (
        isinstance(place, list | tuple)
        and len(place) == count
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in place)
        and all(abs(n) <= sys.float_info.max for n in place)  # nor NaN
    )
