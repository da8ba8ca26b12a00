"""Read a table of yours (JSONL, Parquet, a data set saved to disk) by a map of its columns.

In a config:

    card: table
    options:
      path: data/train.jsonl
      columns: {image: file, question: caption, boxes: bbox, box_labels: category}
      box_space: pixel
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data.cards import conversation, demonstrations
from vlmrl.data.cards.box_checks import check_inside
from vlmrl.data.cards.card import WHERE, Card
from vlmrl.data.cards.readers import file_split, open_rows
from vlmrl.errors import UserError
from vlmrl.media.access import Access, reference
from vlmrl.media.decode import measure_image
from vlmrl.plugins import nearest
from vlmrl.schema import Demo, Frame, Media, Sample, Truth
from vlmrl.truths import json_form
from vlmrl.truths.base import kinds

PLAIN = (
    *("id", "image", "question", "system", "history", "answer", "thought"),
    *("box_labels", "width", "height", "weight"),
)
KEYS = (*PLAIN, *(name for name in kinds() if name not in ("text", "track")))
_PLACES = tuple(name for name, kind in kinds().items() if kind.placed)
_MARK = "<image>"
COLUMN_ROWS = 1000
"""A mapped column must occur in one of the first rows, this many of them."""


@dataclass(frozen=True)
class Table(Card):
    """Rows of a table as samples, by a map from our keys to your columns.

    Plain columns that are not mapped go to the sample's `meta`.
    """

    origin: ClassVar[str] = "a table of yours"

    path: str | dict[str, str]
    """A file or folder, or a map split -> file."""
    columns: dict[str, str]
    """Our key -> your column: `id`; `image` (one or a list of paths, bytes, base64); `question` (an
    `<image>` in it says where an image belongs); `system` (text of the system turn); `history` (turns
    before the question: a list of `{role, content, images}`); `answer` (a text or a list of accepted texts);
    `boxes`, `box_labels`, `points`, `masks`; `spans` (seconds); `number`, `choice`, `options`,
    `labels`, `fields` or another kind of truth (`vlmrl list truths`); `none` (true where the
    question cannot be answered, or where there is nothing to find); `thought` (for the cold start);
    `width`, `height` (pixels); `weight`."""
    prompt: str = "{question}"
    """Text around the question, which replaces `{question}` in it."""
    box_space: Literal["pixel", "norm1000", "norm1"] | None = None
    """The space of all places; it is never guessed."""
    box_format: Literal["xyxy", "xywh"] = "xyxy"
    """Order of the four numbers of a box: two corners, or a corner and the size."""
    root: str | None = None
    """Return the folder of relative image paths; absent: that of the data."""
    loose: float = 0.0
    """Largest share of the image by which each side of a demonstration's box is pushed outwards."""
    seed: int = 0
    """Seed of the draw of `loose`."""

    def __post_init__(self) -> None:
        for key in self.columns:
            if key not in KEYS:
                raise ValueError(f"columns has no key {key!r}{nearest(key, list(KEYS))}")
        if self.box_space is None and (used := [k for k in _PLACES if k in self.columns]):
            raise ValueError(
                f"columns maps {used[0]!r}, so box_space must say in which space they are: "
                "pixel, norm1000 or norm1 (it is never guessed)"
            )
        if "question" not in self.columns and "{question}" in self.prompt:
            raise ValueError(
                "columns has no 'question': map it, or set `prompt` to a fixed question"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split.

        Raises:
            UserError: no such file or split, or a mapped column that no row has.
        """
        rows = self._open(split)
        self._check_columns(rows)
        return rows

    def _open(self, split: str) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.path, str):
            return open_rows(Path(self.path), split)
        if split not in self.path:
            raise UserError(
                f"card 'table': path has no split {split!r}{nearest(split, [*self.path])}"
            )
        path = Path(self.path[split])
        return open_rows(path, split if path.is_dir() else file_split(path))

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row into a sample."""
        media = self._media(row)
        truth = self._truth(row, media)
        rng = random.Random(f"{self.seed} {row.get(WHERE)}")
        demo = demonstrations.demonstration(truth, (0.0, self.loose / 2, self.loose), rng)
        weight = self._get(row, "weight", 1.0)
        return Sample(
            id=str(self._get(row, "id", row.get(WHERE))),
            source=source,
            parts=self._parts(row, media),
            truth=truth,
            demo=self._with_thought(row, demo),
            weight=_number(weight, "weight"),
            meta=self._meta(row),
            system=conversation.read_system(self._get(row, "system")),
            history=conversation.read_history(self._get(row, "history"), self.media_root()),
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the data."""
        if self.root is not None:
            return self.root
        path = Path(self.path if isinstance(self.path, str) else next(iter(self.path.values())))
        return str(path if path.is_dir() else path.parent)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first image's path, if it has one: its questions stay together."""
        media = self._media(row)
        return media[0].path if media else None

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))

    def _check_columns(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a misspelt column; some rows may lack a column."""
        there: set[str] = set()
        for index in range(min(len(rows), COLUMN_ROWS)):
            try:
                there |= set(rows[index])
            except UserError:  # the loader reports and counts it
                continue
        for key, column in self.columns.items():
            if there and column not in there:
                known = sorted(there - {WHERE})
                raise UserError(
                    f"{self.path}: columns.{key}: no column {column!r}{nearest(column, known)}"
                )

    def _get(self, row: Mapping[str, Any], key: str, default: Any = None) -> Any:
        """Return the value under one of our keys; `default` if it is not mapped or missing in this row."""
        value = row.get(self.columns[key]) if key in self.columns else None
        return default if value is None else value

    def _media(self, row: Mapping[str, Any]) -> list[Media]:
        value = self._get(row, "image", [])
        folder = self.media_root()
        return [reference(v, folder) for v in (value if isinstance(value, list) else [value])]

    def _parts(self, row: Mapping[str, Any], media: list[Media]) -> tuple[str | Media, ...]:
        question = self._get(row, "question", "")
        if not isinstance(question, str):
            raise UserError(f"{self._column('question')}: expected a text, got {question!r:.60}")
        text = self.prompt.replace("{question}", question).strip()
        if not text.replace(_MARK, "").strip():
            raise UserError(f"{self._column('question')}: the question is empty")
        if _MARK not in text:
            return (*media, text)
        pieces = text.split(_MARK)
        if len(pieces) - 1 != len(media):
            raise UserError(
                f"{self._column('question')}: {len(pieces) - 1} {_MARK} for {len(media)} images"
            )
        mixed = [
            pieces[0],
            *(part for pair in zip(media, pieces[1:], strict=True) for part in pair),
        ]
        return tuple(p.strip() if isinstance(p, str) else p for p in mixed if not _is_blank(p))

    def _truth(self, row: Mapping[str, Any], media: list[Media]) -> Truth:
        none = "none" in self.columns and _flag(self._get(row, "none", False))
        found: dict[str, Any] = {}
        for key in self.columns:
            value = self._get(row, key)
            name = "text" if key == "answer" else key
            if value is None or key == "none" or (key in PLAIN and key != "answer"):
                continue
            if none and (value == "" or value == []):
                continue  # the usual way to leave out the answer of an unanswerable question
            try:
                frame = self._frame(row, media) if key in _PLACES else Frame()
                stated = self._boxes(row, value, frame) if key == "boxes" else _typed(key, value)
                found[name] = json_form.read({name: stated}, frame).value(name)
            except UserError as error:
                raise UserError(f"{self._column(key)}: {error}") from error
        if not found and not none:
            raise UserError("no answer: none of the mapped columns says what is true")
        nothing = all(kinds()[name].listed and value == () for name, value in found.items())
        return Truth.of({**found, "none": none or nothing})

    def _frame(self, row: Mapping[str, Any], media: list[Media]) -> Frame:
        """Return the frame of the first image in the declared space; its size is from columns or header."""
        assert self.box_space is not None
        if self.box_space != "pixel":
            return Frame(space=self.box_space)
        if "width" in self.columns and "height" in self.columns:
            width, height = (_number(self._get(row, key), key) for key in ("width", "height"))
        elif media and media[0].url is None:
            width, height = measure_image(media[0], Access(self.media_root()))
        else:
            raise UserError(
                "coordinates in pixels need an image at hand, or columns `width` and `height`"
            )
        return Frame(int(width), int(height), space="pixel")

    def _boxes(self, row: Mapping[str, Any], value: Any, frame: Frame) -> list[Any]:
        boxes = _typed("boxes", value)
        if boxes and not isinstance(boxes[0], list | Mapping):
            boxes = [boxes]  # one box, bare
        labels = _typed("box_labels", self._get(row, "box_labels", [None] * len(boxes)))
        if len(labels) != len(boxes):
            raise UserError(
                f"{self._column('box_labels')}: expected {len(boxes)} labels, got {len(labels)}"
            )
        if self.box_format == "xywh":
            boxes = [[x, y, x + w, y + h] for x, y, w, h in boxes]
        check_inside(boxes, frame)
        return [{"box": box, "label": name} for box, name in zip(boxes, labels, strict=True)]

    def _with_thought(self, row: Mapping[str, Any], demo: Demo | None) -> Demo | None:
        thought = self._get(row, "thought")
        if thought is None or demo is None:
            return demo
        return replace(demo, thought=str(thought))

    def _meta(self, row: Mapping[str, Any]) -> dict[str, Any]:
        mapped = {WHERE, *self.columns.values()}
        plain = {
            k: v for k, v in row.items() if k not in mapped and isinstance(v, str | int | float)
        }
        size = tuple(self._get(row, key) for key in ("width", "height"))
        return {**plain, "where": row.get(WHERE, ""), "size": None if None in size else size}

    def _column(self, key: str) -> str:
        return f"column {self.columns[key]!r}" if key in self.columns else f"`{key}`"


def _typed(key: str, value: Any) -> Any:
    """Return a cell's value: lists may come as JSON text or as one bare item, numbers as text."""
    if key == "answer" or key == "choice":
        return str(value) if isinstance(value, int | float) else value
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UserError(f"not valid JSON: {error}") from error
    if key == "number":
        return _number(value, key)
    if key in ("labels", "options", "box_labels") and isinstance(value, str):
        return [value]
    return value


def _flag(value: Any) -> bool:
    """Return a cell that is true or false: JSON's own, 1 and 0, or these words as text."""
    known = {"true": True, "false": False, "1": True, "0": False}
    said = str(value).strip().lower()
    if said not in known:
        raise UserError(f"none: expected true or false, got {value!r:.60}")
    return known[said]


def _number(value: Any, key: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: expected a number, got {value!r:.60}") from error


def _is_blank(part: Any) -> bool:
    return isinstance(part, str) and not part.strip()
