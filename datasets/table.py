"""Read a table of yours (JSONL, Parquet, CSV, TSV ...) by a map of its columns.

In a config:

    card: table
    options:
      path: data/train.jsonl
      columns: {image: file, question: caption, boxes: bbox, box_labels: category}
      box_space: pixel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlmrl.data import demonstrations, row_forms, typed_rows
from vlmrl.data.card import Card
from vlmrl.data.files.hub_download import folder_of, locate
from vlmrl.data.files.opening import file_split, open_rows, splits
from vlmrl.data.files.rows import WHERE, cell, paths
from vlmrl.data.typed_rows import COLUMNS, PLACES, TAG, Typing, to_number
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Sample

COLUMN_ROWS = 1000
"""A mapped column must occur in one of the first rows, this many of them."""


@dataclass(frozen=True)
class Table(Card):
    """Rows of a table as samples, by a map from our keys to your columns.

    Plain columns that are not mapped, and lists of texts, go to the sample's `meta`.
    """

    origin: ClassVar[str] = "a table of yours"

    path: str | dict[str, str]
    """A file or folder, `hf://datasets/owner/name` of the Hugging Face hub, or a map split -> file."""
    columns: dict[str, str | list[str]]
    """Our key -> your column, or a dotted path into one (`objects.bbox`, `messages.0.content`): `id`;
    `image`, `video`, `audio` (one or a list of paths, bytes, base64); `image_index` (which image
    the places are in, from 0); `question` (an `<image>` in it says where it belongs); `system` (text
    of the system turn); `history` (turns before the question: a list of `{role, content, images}`);
    `answer` (a text or a list of accepted texts); `boxes`, `box_labels` (four numbers each; a name
    each; of a box in four columns their list, `[xmin, ymin, xmax, ymax]`); `points`, `keypoints`,
    `masks`, `rotated_boxes` (other places); `spans` (start and end in seconds); `number`; `choice`,
    `options` (the right letter or text; the texts); `labels` (names); `order` (names in their right
    order); `fields` (an object of named values) or another kind of truth
    (`vlmrl list truths`); `none` (true
    where the question cannot be answered, or where there is nothing to find); `thought` (for the cold
    start), `turns` (calls before that answer: a list of messages of the assistant, with `tool_calls`, and
    of the role `tool`), `<info>` and so on (what stands in that tag of the template, for the cold start);
    `width`, `height` (pixels); `weight` (factor of the loss); `rewards` (the row's own verifiers in
    place of the source's: a list of names or of `{verifier, weight, options}`); `rubric` (the row's own
    criteria for `judge`: a list of texts or of `{name, text, weight}`, or as HealthBench has them).
    Grounding: `{image: file, question: text, boxes: bbox}`; detection: with `box_labels: category`;
    pointing: `points: clicks`; segmentation: `masks: outlines`; counting: `number: count`; multiple
    choice: `choice: answer, options: choices`; questions, OCR, captions: `answer: label`; tags:
    `labels: tags`; moments: `{video: file, question: query, spans: times}`; forms: `fields: target`."""
    prompt: str = "{question}"
    """Text around the question, which replaces `{question}` in it."""
    list_options: bool = True
    """List `options` by letters below a question that does not show them."""
    box_space: Literal["pixel", "norm1000", "norm1"] | None = None
    """The space of all places; it is never guessed."""
    box_format: Literal["xyxy", "xywh"] = "xyxy"
    """Order of the four numbers of a box: two corners, or a corner and the size."""
    root: str | None = None
    """Folder of relative media paths; absent: that of the data."""
    loose: float = 0.0
    """Largest share of the image by which each side of a demonstration's box is pushed outwards."""
    seed: int = 0
    """Seed of the draw of `loose`."""

    def __post_init__(self) -> None:
        for key, column in self.columns.items():
            if key not in COLUMNS and not TAG.fullmatch(key):
                raise ValueError(f"columns has no key {key!r}{nearest(key, list(COLUMNS))}")
            if isinstance(column, list) and (key != "boxes" or len(column) != 4):
                raise ValueError(
                    f"columns.{key}: expected a column, or of `boxes` a list of four, got {column}"
                )
        if self.box_space is None and (used := [k for k in PLACES if k in self.columns]):
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
            UserError: no such file or split, a mapped column that no row has, or bad `rewards` in a row.
        """
        rows = self._open(split)
        self._check_columns(rows)
        if "rewards" in self.columns:
            row_forms.check_all(rows, str(self.columns["rewards"]))
        return rows

    def _open(self, split: str) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.path, str):
            return open_rows(locate(self.path), split)
        if split not in self.path:
            raise UserError(
                f"card 'table': path has no split {split!r}{nearest(split, [*self.path])}"
            )
        path = locate(self.path[split])
        return open_rows(path, split if path.is_dir() else file_split(path))

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row into a sample."""
        own = self.loose, self.seed, self.list_options
        names = {key: ", ".join(_columns(column)) for key, column in self.columns.items()}
        typing = Typing(source, self.media_root(), names, *own)
        return typed_rows.to_sample(self._typed(row), str(row.get(WHERE)), typing)

    def media_root(self) -> str:
        """Return `root`, or the folder of the data."""
        if self.root is not None:
            return self.root
        return folder_of(
            self.path if isinstance(self.path, str) else next(iter(self.path.values()))
        )

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first medium's path, if it has one: its questions stay together."""
        media = typed_rows.media_of(self._typed(row), self.media_root())
        return media[0].path if media else None

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits of the path, or those that it maps to files."""
        return splits(locate(self.path)) if isinstance(self.path, str) else tuple(self.path)

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self._open("train"))

    def _check_columns(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a misspelt column; some rows may lack a column."""
        there: set[str] = set()
        for index in range(min(len(rows), COLUMN_ROWS)):
            try:
                there.update(paths(rows[index]))
            except UserError:  # the loader reports and counts it
                continue
        pairs = ((key, name) for key, mapped in self.columns.items() for name in _columns(mapped))
        for key, column in pairs:
            if there and column not in there:
                known = sorted(there - {WHERE})
                raise UserError(
                    f"{self.path}: columns.{key}: no column {column!r}{nearest(column, known)}"
                )

    def _typed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row under our keys."""
        typed = {
            key: cell(row, column) if isinstance(column, str) else _box(row, column)
            for key, column in self.columns.items()
        }
        question = "" if typed.get("question") is None else typed["question"]
        if isinstance(question, str):
            typed["question"] = self.prompt.replace("{question}", question)
        mapped = {WHERE, *(c for column in self.columns.values() for c in _columns(column))}
        meta = {k: v for k, v in row.items() if k not in mapped and _is_plain(v)}
        return {**typed, "box_space": self.box_space, "box_format": self.box_format, "meta": meta}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, str | int | float)


def _columns(mapped: str | list[str]) -> list[str]:
    return [mapped] if isinstance(mapped, str) else mapped


def _box(row: Mapping[str, Any], columns: list[str]) -> list[list[float]]:
    """Return the one box of a row from its four columns; none where all of them are empty.

    Raises:
        UserError: one of them holds no number.
    """
    numbers = [cell(row, column) for column in columns]
    if all(number is None or number == "" for number in numbers):
        return []
    return [[to_number(n, f"column {c!r}") for n, c in zip(numbers, columns, strict=True)]]
