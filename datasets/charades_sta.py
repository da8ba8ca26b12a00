"""Charades-STA: a sentence, and when it happens in a half-minute indoor video.

Source: Gao et al. 2017, "TALL: Temporal Activity Localization via Language Query", arXiv:1705.02101.
Lines of `charades_sta_train.txt` and `charades_sta_test.txt`: `AO8RW 0.0 6.9##a person is putting a
book on a shelf.`, start and end in seconds; the videos are those of Charades, one file each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.annotations import spans_truth, video_named
from vlmrl.data.card import Card
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Sample


@dataclass(frozen=True)
class CharadesSta(Card):
    """When does it happen? Charades-STA as published."""

    origin: ClassVar[str] = "arXiv:1705.02101; clips: Charades (AI2)"
    licence: ClassVar[str] = "Charades: non-commercial research"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    media: ClassVar[tuple[str, ...]] = ("video",)
    verifiers: ClassVar[tuple[str, ...]] = ("temporal_iou", "format")

    path: str
    """Folder of the two text files."""
    videos: str = "Charades_v1_480"
    """Folder of the videos, relative to `path`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each line."""
        if split not in self.splits:
            raise UserError(f"charades_sta has no split {split!r}; there are: train, test")
        file = Path(self.path) / f"charades_sta_{split}.txt"
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: {error}") from error
        return [
            {"id": f"charades-sta-{split}-{number}", "line": line, WHERE: f"{file}:{number}"}
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one line into a sample."""
        head, mark, sentence = row["line"].partition("##")
        fields = head.split()
        if not mark or len(fields) != 3 or not sentence.strip():
            raise UserError(f"expected `VIDEO START END##sentence`, got {row['line']!r:.80}")
        try:
            span = [float(fields[1]), float(fields[2])]
        except ValueError as error:
            raise UserError(f"expected start and end in seconds: {error}") from error
        truth = spans_truth([span], None)
        question = f"When does this happen: {sentence.strip().rstrip('.')}?"
        return Sample(
            id=row["id"],
            source=source,
            parts=(video_named(Path(self.path) / self.videos, fields[0]), question),
            truth=truth,
            demo=Demo(answer=truth),
            meta={"where": row[WHERE]},
        )

    def media_root(self) -> str:
        """Return the folder of the videos."""
        return str(Path(self.path) / self.videos)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video."""
        return str(row["line"].split(" ", 1)[0])

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))
