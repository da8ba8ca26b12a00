"""Read a data set in a published layout, which is recognised by itself.

In a config:

    card: auto
    options: {path: data/train.json}
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data import demonstrations, layout_recognition, row_forms, typed_rows
from vlmrl.data.card import Card
from vlmrl.data.files.hub_download import locate
from vlmrl.data.files.rows import WHERE, narrowed
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.typed_rows import Typing
from vlmrl.schema import Sample


@dataclass(frozen=True)
class Auto(Card):
    """Rows of a data set in a published layout (`vlmrl list layouts`), recognised by itself.

    `vlmrl data explain PATH` shows what a path is taken for, and why.
    """

    origin: ClassVar[str] = "a data set of yours in a published layout"

    path: str
    """File or folder of the data, or `hf://datasets/owner/name` of the Hugging Face hub."""
    layout: str | None = None
    """Name of the layout; absent: the one that fits."""
    task: str | None = None
    """Which question to ask, for a layout that can ask several (detection, counting, ...)."""
    question: str | None = None
    """The question, for a layout that has none of its own."""
    box_space: Literal["pixel", "norm1000", "norm1"] | None = None
    """The space of all places, where the layout does not say it or the data differ from it."""
    box_format: Literal["xyxy", "xywh"] | None = None
    """Order of the four numbers of a box, likewise."""
    root: str | None = None
    """Folder of relative media paths; absent: what the layout says."""
    loose: float = 0.0
    """Largest share of the image by which each side of a demonstration's box is pushed outwards."""
    seed: int = 0
    """Seed of the draw of `loose`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split.

        Raises:
            UserError: no layout fits, the split does not exist, or a row names its verifiers wrongly.
        """
        layout = self.chosen[0]
        rows = layout.rows(self.place, split)
        if layout.reward_columns:
            few = narrowed(rows, layout.reward_columns)
            row_forms.check_all(few, layout.fields["rewards"], layout.rewards_of)
        return rows

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row into a sample."""
        names = self.chosen[0].fields
        typing = Typing(source, self.media_root(), names, self.loose, self.seed)
        return typed_rows.to_sample(self._typed(row), str(row.get(WHERE)), typing)

    def media_root(self) -> str:
        """Return `root`, or the layout's folder of media."""
        return self.root if self.root is not None else self.chosen[0].media_root(self.place)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first medium's path, if it has one: its questions stay together."""
        media = typed_rows.media_of(self._typed(row), self.media_root())
        return media[0].path if media else None

    def fitting_verifiers(self) -> tuple[str, ...]:
        """Return the verifiers that fit the layout."""
        return self.chosen[0].verifiers

    def describe(self) -> str:
        """Return the layout, and why it is that one."""
        layout, match = self.chosen
        splits = ", ".join(layout.splits(self.place))
        return f"layout {match.name} ({layout.title}): {match.reason}; splits: {splits}"

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))

    @functools.cached_property
    def place(self) -> DataPlace:
        """Return what lies at the path."""
        return DataPlace(locate(self.path), None if self.root is None else Path(self.root))

    @functools.cached_property
    def chosen(self) -> tuple[Layout, layout_recognition.Match]:
        """Return the layout of the path, and why it is that one.

        Raises:
            UserError: there is no such path; no layout fits, or several do.
        """
        options = {"task": self.task, "question": self.question}
        stated = {key: value for key, value in options.items() if value is not None}
        return layout_recognition.choose(self.place, self.layout, stated)

    def _typed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row under our keys, with what the options say of its boxes."""
        read = self.chosen[0].read(row, self.place)
        stated = {"box_space": self.box_space, "box_format": self.box_format}
        return {**read, **{key: value for key, value in stated.items() if value is not None}}
