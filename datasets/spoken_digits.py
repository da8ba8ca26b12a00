"""Spoken digits (Free Spoken Digit Dataset): audio of under two seconds, which digit is it?

The data set is a folder of files `<digit>_<speaker>_<take>.wav` (or `.flac`), 8 kHz. As its authors
divide it, takes 0 to 4 are for testing. The same six speakers are on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Demo, Sample, Truth

_NAME = re.compile(r"(?P<digit>[0-9])_(?P<speaker>[a-z]+)_(?P<take>[0-9]+)\.(?P<suffix>wav|flac)")
TEST_TAKES = 5


@dataclass(frozen=True)
class SpokenDigits(Card):
    """Recordings of a folder."""

    origin: ClassVar[str] = "github.com/Jakobovski/free-spoken-digit-dataset"
    licence: ClassVar[str] = "CC BY-SA 4.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "number", "format")

    path: str
    """Folder of the recordings (`recordings` of the data set)."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each audio file, by name."""
        if split not in self.splits:
            raise UserError(
                f"card 'spoken_digits' has no split {split!r}: {', '.join(self.splits)}"
            )
        folder = Path(self.path)
        names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        if not matches:
            raise UserError(
                f"card 'spoken_digits': {self.path} has no audio file such as 7_jackson_32.wav; "
                f"get the Free Spoken Digit Dataset ({self.origin}) and set `path` to its folder "
                "`recordings`"
            )
        testing = split == "test"
        return [
            {"id": Path(match[0]).stem, **match.groupdict()}
            for match in matches
            if (int(match["take"]) < TEST_TAKES) == testing
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one audio file and the question into a sample."""
        digit = row["digit"]
        return Sample(
            id=row["id"],
            source=source,
            parts=(reference(f"{row['id']}.{row['suffix']}", self.path, "audio"), "Which digit?"),
            truth=Truth(text=(digit,), number=float(digit)),
            template="answer_only",
            demo=Demo(text=digit),
            meta={"speaker": row["speaker"]},
        )

    def media_root(self) -> str:
        """Return the folder."""
        return self.path

    def corpus(self) -> list[str]:
        """Return questions and answers."""
        return demonstrations.corpus(self, self.rows("train"))
