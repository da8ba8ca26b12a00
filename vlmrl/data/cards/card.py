"""The contract of a card: one file under `datasets/` that says what a data set is and reads it.

A card is a frozen dataclass; its fields are its options in the config. Reading is lazy:
`rows(split)` must be cheap, and `to_sample(row)` makes one sample without decoding any media.

`vlmrl.data.files` opens data files with the place of each row. Helpers of cards, next to this file:
`typed_rows` makes samples of rows under our keys; `multiple_choice` reads options; `box_checks` finds
boxes stated in another space; `column_aliases` names columns as published; `demonstrations` writes
answers for a cold start; `conversation` reads the turns before a question; `row_rewards` reads a row's
own verifiers; `video_annotations` finds video files and checks spans; `audioset_labels` knows the
classes of AudioSet; `preference_pairs` reads pairs of answers. `vlmrl.media.access.reference` makes a
`Media` of a path or bytes, and `vlmrl.truths.json_form.read` a `Truth` of its JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.schema import Sample

__all__ = ["Card"]


@dataclass(frozen=True)
class Card:
    """Base of cards.

    Class variables: `origin` (where the data comes from), `revision`, `licence`, `splits`,
    `media` (what its prompts hold, of image, video and audio; empty: what its rows have),
    `verifiers` (what fits this data).
    """

    origin: ClassVar[str] = ""
    revision: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")
    media: ClassVar[tuple[str, ...]] = ()
    verifiers: ClassVar[tuple[str, ...]] = ()

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Open the rows of a split: indexable, with a length, lazy where the format allows.

        Raises:
            UserError: no such split or file; the message names it.
        """
        raise TypeError(f"{type(self).__name__} must define rows")

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """One row as a sample: truth in the unit square and in seconds.

        Raises:
            UserError: what is wrong with this row; the loader quarantines it under this reason.
        """
        raise TypeError(f"{type(self).__name__} must define to_sample")

    def media_root(self) -> str | None:
        """Return the folder that media paths must stay inside, unless `data.media_root` names another."""
        return None

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Rows of one group stay on one side of a split `train[:80%]`; None: each for itself."""
        return None

    def corpus(self) -> list[str]:
        """Text on which a small model's tokenizer is trained (questions and demonstrations)."""
        return []

    def fitting_verifiers(self) -> tuple[str, ...]:
        """Return the names of verifiers that fit these data: `verifiers`, or what the options make of it."""
        return self.verifiers

    def describe(self) -> str:
        """Return what the data are taken for and why, on one line; empty: the card's name says it."""
        return ""

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write a few rows in the published layout into a folder; return the options that read them.

        For the contract test. A card without required options that makes its own rows needs none.
        """
        return {}
