"""MMAU: questions about sound, music and speech with four options, as its authors publish them.

Source: Sakshi et al. 2024, "MMAU", arXiv:2410.19168. A JSON list (`mmau-test-mini.json`, `mmau-test.json`)
of objects with `id`, `audio_id` (a path such as `./test-mini-audios/x.wav`), `question`, `choices`,
`answer` (the right option's text; absent in the hidden test), and plain fields such as `task`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.text_rows import json_objects
from vlmrl.data.multiple_choice import lettered
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Sample


@dataclass(frozen=True)
class Mmau(Card):
    """Multiple choice about recordings."""

    origin: ClassVar[str] = "github.com/Sakshi113/MMAU"
    licence: ClassVar[str] = "see the data's own page"
    splits: ClassVar[tuple[str, ...]] = ("test",)
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("choice", "format")

    path: str
    """The JSON file."""
    root: str | None = None
    """Folder of the recordings; None: the folder of `path`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the file's objects."""
        if split not in self.splits:
            raise UserError(f"card 'mmau' has no split {split!r}; it is for evaluation: test")
        return json_objects(Path(self.path))

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one question with its options and its audio into a sample."""
        text, truth, demo = lettered(row.get("question"), row.get("choices"), row.get("answer"))
        kept = ("dataset", "task", "category", "sub-category", "difficulty")
        return Sample(
            id=str(row.get("id")),
            source=source,
            parts=(
                reference(row.get("audio_id"), self.media_root(), "audio"),
                text,
            ),
            truth=truth,
            demo=demo,
            meta={key: row[key] for key in kept if isinstance(row.get(key), str)},
        )

    def media_root(self) -> str:
        """Return `root`, or the file's folder."""
        return self.root or str(Path(self.path).parent)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the audio."""
        return str(row.get("audio_id"))

    def corpus(self) -> list[str]:
        """Return questions and letters."""
        return demonstrations.corpus(self, self.rows("test"))
