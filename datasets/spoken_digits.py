"""Spoken digits (Free Spoken Digit Dataset): audio of under two seconds, which digit is it?

The data set is a folder of files `<digit>_<speaker>_<take>.wav` (or `.flac`), 8 kHz. As its authors
divide it, takes 0 to 4 are for testing. The same six speakers are on both sides.

With the option `longest`, recordings follow each other without a pause: which digits are spoken?
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vlmrl.data import audio_files, demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Demo, Media, Sample, Truth

_NAME = re.compile(r"(?P<digit>[0-9])_(?P<speaker>[a-z]+)_(?P<take>[0-9]+)\.(?P<suffix>wav|flac)")
TEST_TAKES = 5


@dataclass(frozen=True)
class SpokenDigits(Card):
    """Recordings of a folder."""

    origin: ClassVar[str] = "github.com/Jakobovski/free-spoken-digit-dataset"
    licence: ClassVar[str] = "CC BY-SA 4.0"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "number", "asr", "format")

    path: str
    """Folder of the recordings (`recordings` of the data set)."""
    longest: int = 1
    """Most digits of a sample: one recording, or several of the same speaker and take without a pause
    between them. How many, and which follow, depends on the first alone."""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest: expected at least 1 digit, got {self.longest}")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each audio file, by name, which is the row's first."""
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
        matches = [match for match in matches if (int(match["take"]) < TEST_TAKES) == testing]
        takes: dict[str, list[re.Match[str]]] = defaultdict(list)
        for match in matches:
            takes[_take(match)].append(match)
        return [self._row(match, takes[_take(match)]) for match in matches]

    def _row(self, first: re.Match[str], take: Sequence[re.Match[str]]) -> dict[str, Any]:
        row: dict[str, Any] = {"id": Path(first[0]).stem, **first.groupdict()}
        if self.longest > 1:
            rng = random.Random(row["id"])
            sequence = [first, *rng.choices(take, k=rng.randrange(self.longest))]
            row["files"] = [match[0] for match in sequence]
            row["digit"] = " ".join(match["digit"] for match in sequence)
            row["id"] += row["digit"][1:].replace(" ", "-")
        return row

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row and the question into a sample."""
        digit, single = row["digit"], self.longest == 1
        names = [f"{row['id']}.{row['suffix']}"] if single else row["files"]
        return Sample(
            id=row["id"],
            source=source,
            parts=(self._audio(names), "Which digit?" if single else "Which digits?"),
            truth=Truth(text=(digit,), number=float(digit) if single else None),
            template="answer_only",
            demo=Demo(text=digit),
            meta={"speaker": row["speaker"]},
        )

    def _audio(self, names: Sequence[str]) -> Media:
        """Return the recordings as one medium, 16-bit WAV where there are several."""
        if len(names) == 1:
            return reference(names[0], self.path, "audio")
        audios = audio_files.read(names, self.path, "spoken_digits")
        return audio_files.write(np.concatenate([a.samples for a in audios]), audios[0].rate)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return speaker and take, of which sequences share recordings; a single digit is for itself."""
        return None if self.longest == 1 else _take(row)

    def media_root(self) -> str:
        """Return the folder."""
        return self.path

    def corpus(self) -> list[str]:
        """Return questions and answers."""
        return demonstrations.corpus(self, self.rows("train"))


def _take(match: re.Match[str] | Mapping[str, Any]) -> str:
    return f"{match['speaker']}_{match['take']}"
