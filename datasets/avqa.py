"""AVQA: questions with four options about videos and their audio, as its authors publish them.

Source: Yang et al. 2022, "AVQA: A Dataset for Audio-Visual Question Answering on Videos", ACM MM. JSON
lists `train_qa.json` and `val_qa.json` of objects with `id`, `video_name`, `question_text`,
`multi_choice`, `answer` (index from 0), `question_type`; the videos or audio files are
elsewhere, one file `<video_name><suffix>` each. R1-AQA trained on the audio alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.text_rows import json_objects
from vlmrl.data.multiple_choice import lettered
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Sample

FILES = {"train": "train_qa.json", "val": "val_qa.json"}


@dataclass(frozen=True)
class Avqa(Card):
    """Multiple choice about videos or their sound."""

    origin: ClassVar[str] = "mn.cs.tsinghua.edu.cn/avqa"
    licence: ClassVar[str] = "see the data's own page"
    splits: ClassVar[tuple[str, ...]] = ("train", "val")
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("choice", "format")

    path: str
    """Folder of the JSON files."""
    root: str | None = None
    """Folder of the media; None: `path`."""
    kind: Literal["audio", "video"] = "audio"
    """Kind of media that is shown with a question."""
    suffix: str = ".wav"
    """Ending of the media files' names, with the dot."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects of a split's file."""
        if split not in FILES:
            raise UserError(f"card 'avqa' has no split {split!r}; there are: {', '.join(FILES)}")
        return json_objects(Path(self.path) / FILES[split])

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one question with its options and its medium into a sample."""
        name = row.get("video_name")
        if not isinstance(name, str) or not name:
            raise UserError(f"key 'video_name': expected a name, got {name!r:.60}")
        text, truth, demo = lettered(
            row.get("question_text"), row.get("multi_choice"), row.get("answer")
        )
        kept = ("question_relation", "question_type")
        return Sample(
            id=str(row.get("id")),
            source=source,
            parts=(reference(f"{name}{self.suffix}", self.media_root(), self.kind), text),
            truth=truth,
            demo=demo,
            meta={key: row[key] for key in kept if isinstance(row.get(key), str)},
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the JSON files."""
        return self.root or self.path

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video."""
        return str(row.get("video_name"))

    def corpus(self) -> list[str]:
        """Return questions and letters."""
        return demonstrations.corpus(self, self.rows("train"))
