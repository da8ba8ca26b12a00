"""Read a data set in a published layout, which is recognised by itself.

In a config:

    card: auto
    options: {path: data/train.json}
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data import demonstrations, layout_recognition, row_forms, typed_rows
from vlmrl.data.card import Card
from vlmrl.data.files.hub_download import locate
from vlmrl.data.files.rows import SPLIT, WHERE, SplitRows, narrowed
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.typed_rows import Typing
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Sample

Chosen = tuple[Layout, layout_recognition.Match]
"""A layout, and why it is that one."""


@dataclass(frozen=True)
class Auto(Card):
    """Rows of a data set in a published layout (`vlmrl list layouts`), recognised by itself.

    `vlmrl data explain PATH` shows what a path is taken for, and why.
    """

    origin: ClassVar[str] = "a data set of yours in a published layout"

    path: str | dict[str, str]
    """File or folder of the data, `hf://datasets/owner/name` of the Hugging Face hub, or a map split ->
    file."""
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
        if isinstance(self.path, str):
            return self._rows("", split)
        if split not in self.path:
            raise UserError(
                f"card 'auto': path has no split {split!r}{nearest(split, [*self.path])}"
            )
        known = self._chosen(split)[0].splits(self.places[split])
        own = known[0] if len(known) == 1 else split  # a file alone may be called otherwise
        return SplitRows(self._rows(split, own), split)

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row into a sample."""
        of = str(row.get(SPLIT, ""))
        layout = self._chosen(of)[0]
        typing = Typing(source, self._root(of), layout.fields, self.loose, self.seed)
        return typed_rows.to_sample(self._typed(row), str(row.get(WHERE)), typing)

    def media_root(self) -> str:
        """Return `root`, or the layout's folder of media; of several files the folder around theirs.

        Raises:
            UserError: the files of a map lie apart from each other.
        """
        roots = {self._root(of) for of in self.places}
        if len(roots) == 1:
            return roots.pop()
        resolved = [Path(root).resolve() for root in roots]
        around = Path(os.path.commonpath(resolved))
        if any(around not in (root, root.parent) for root in resolved):
            raise UserError(
                f"card 'auto': the files of path lie in {', '.join(sorted(roots))}: set root, the folder of "
                "all media"
            )
        return str(around)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first medium's path, if it has one: its questions stay together."""
        media = typed_rows.media_of(self._typed(row), self._root(str(row.get(SPLIT, ""))))
        return media[0].path if media else None

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits of the path, or those that it maps to files."""
        if not isinstance(self.path, str):
            return tuple(self.path)
        return self._chosen("")[0].splits(self.places[""])

    def fitting_verifiers(self) -> tuple[str, ...]:
        """Return the verifiers that fit the layout."""
        return self._chosen(next(iter(self.places)))[0].verifiers

    def describe(self) -> str:
        """Return the layout, and why it is that one."""
        layout, match = self._chosen(next(iter(self.places)))
        splits = ", ".join(self.splits_there())
        return f"layout {match.name} ({layout.title}): {match.reason}; splits: {splits}"

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))

    @functools.cached_property
    def places(self) -> dict[str, DataPlace]:
        """Return what lies at the path, under an empty name, or what lies at each path by its split."""
        paths = {"": self.path} if isinstance(self.path, str) else self.path
        media = None if self.root is None else Path(self.root)
        return {split: DataPlace(locate(path), media) for split, path in paths.items()}

    def _chosen(self, of: str) -> Chosen:
        """Return the layout of one of `places`.

        Raises:
            UserError: there is no such path; no layout fits, or several do.
        """
        options = {"task": self.task, "question": self.question}
        stated = {key: value for key, value in options.items() if value is not None}
        data = self.places[of]
        return data.once("layout", lambda: layout_recognition.choose(data, self.layout, stated))

    def _rows(self, of: str, split: str) -> Sequence[Mapping[str, Any]]:
        layout = self._chosen(of)[0]
        rows = layout.rows(self.places[of], split)
        if layout.reward_columns:
            few = narrowed(rows, layout.reward_columns)
            row_forms.check_all(few, layout.fields["rewards"], layout.rewards_of)
        return rows

    def _root(self, of: str) -> str:
        """Return the folder from which relative media paths of one of `places` start."""
        return (
            self.root if self.root is not None else self._chosen(of)[0].media_root(self.places[of])
        )

    def _typed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row under our keys, with what the options say of its boxes."""
        of = str(row.get(SPLIT, ""))
        plain = {key: value for key, value in row.items() if key != SPLIT}
        read = self._chosen(of)[0].read(plain, self.places[of])
        stated = {"box_space": self.box_space, "box_format": self.box_format}
        return {**read, **{key: value for key, value in stated.items() if value is not None}}
