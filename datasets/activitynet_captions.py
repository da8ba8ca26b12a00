"""ActivityNet Captions: sentences with the spans of time they describe, in two-minute videos.

Source: Krishna et al. 2017, "Dense-Captioning Events in Videos", arXiv:1705.00754. `train.json`,
`val_1.json`, `val_2.json`: {"v_QOlSCBRmfWY": {"duration": 82.73, "timestamps": [[0.83, 19.86], ...],
"sentences": ["A young woman ...", ...]}}, in seconds; one video file for each key.
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
from vlmrl.system.files import read_json

FILES = {"train": "train.json", "val": "val_1.json", "test": "val_2.json"}


@dataclass(frozen=True)
class ActivitynetCaptions(Card):
    """When does it happen? ActivityNet Captions as published; `test` is its second validation file."""

    origin: ClassVar[str] = "arXiv:1705.00754; clips: ActivityNet 1.3"
    licence: ClassVar[str] = "annotations: see the authors' page; clips: YouTube's terms"
    media: ClassVar[tuple[str, ...]] = ("video",)
    verifiers: ClassVar[tuple[str, ...]] = ("temporal_iou", "format")

    path: str
    """Folder of the JSON files."""
    videos: str = "videos"
    """Folder of the videos, relative to `path`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each sentence."""
        if split not in FILES:
            raise UserError(
                f"activitynet_captions has no split {split!r}; there are: {', '.join(FILES)}"
            )
        file = Path(self.path) / FILES[split]
        clips = read_json(file)
        if not isinstance(clips, dict):
            raise UserError(f"{file}: expected an object of videos by name")
        return [
            {"video": name, "clip": video, "number": number, WHERE: f"{file}: {name} [{number}]"}
            for name, video in clips.items()
            for number in range(_count(video))
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one sentence into a sample."""
        video, number = row["clip"], row["number"]
        if not isinstance(video, dict) or not isinstance(video.get("sentences"), list):
            raise UserError(f"expected an object with sentences, got {video!r:.60}")
        spans, sentences = video.get("timestamps"), video["sentences"]
        duration = video.get("duration")
        if not isinstance(duration, int | float) or not duration > 0:
            raise UserError(f"duration: expected seconds above 0, got {duration!r}")
        if not isinstance(spans, list) or len(spans) != len(sentences):
            raise UserError(
                f"timestamps: expected a list of {len(sentences)}, one for each sentence, "
                f"got {spans!r:.60}"
            )
        if not isinstance(sentences[number], str) or not sentences[number].strip():
            raise UserError(f"sentence: expected a non-empty text, got {sentences[number]!r:.60}")
        truth = spans_truth([spans[number]], float(duration))
        question = f"When does this happen: {sentences[number].strip().rstrip('.')}?"
        return Sample(
            id=f"{row['video']}-{number}",
            source=source,
            parts=(video_named(Path(self.path) / self.videos, row["video"]), question),
            truth=truth,
            demo=Demo(answer=truth),
            meta={"where": row[WHERE], "duration": float(duration)},
        )

    def media_root(self) -> str:
        """Return the folder of the videos."""
        return str(Path(self.path) / self.videos)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video."""
        return str(row["video"])

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))


def _count(video: Any) -> int:
    """Return the number of sentences of a video; a broken video is one row, to be reported."""
    sentences = video.get("sentences") if isinstance(video, dict) else None
    return len(sentences) if isinstance(sentences, list) else 1
