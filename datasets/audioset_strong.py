"""AudioSet-Strong: every sound in ten seconds of a video's audio, with its start and end.

Source: Hershey et al. 2021, "The Benefit of Temporally-Strong Labels in Audio Event Classification",
arXiv:2105.07031. `audioset_train_strong.tsv` and `audioset_eval_strong.tsv`: a heading, then
`s9d-2nhuJCQ_30000 <tab> 2.627 <tab> 7.237 <tab> /m/053hz1`: the YouTube id with the excerpt's start in
milliseconds, start and end in seconds of the excerpt, and the class, whose name is in
`mid_to_display_name.tsv` (no heading).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import annotations as audioset_labels
from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Demo, Frame, Sample
from vlmrl.truths import json_form

FILES = {"train": "audioset_train_strong.tsv", "test": "audioset_eval_strong.tsv"}
CLASSES = "mid_to_display_name.tsv"
COLUMNS = ["segment_id", "start_time_seconds", "end_time_seconds", "label"]


@dataclass(frozen=True)
class AudiosetStrong(Card):
    """What is heard, and from when to when? AudioSet-Strong as published."""

    origin: ClassVar[str] = "research.google.com/audioset/download_strong.html"
    licence: ClassVar[str] = "annotations: CC BY 4.0; recordings: YouTube's terms"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("events", "format")

    path: str
    """Folder of the `.tsv` files."""
    root: str | None = None
    """Folder of the recordings, one excerpt a file; None: `path`."""
    file: str = "{segment}.wav"
    """Name of a recording, with `{segment}` (`s9d-2nhuJCQ_30000`) and `{ytid}`."""
    offered: int = 10
    """Names that a question offers, right and wrong ones together; 0: none."""
    seed: int = 0
    """Seed of the wrong names."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each excerpt, with the lines of its events."""
        if split not in FILES:
            raise UserError(f"audioset_strong has no split {split!r}; there are: train, test")
        file = Path(self.path) / FILES[split]
        heading, *lines = audioset_labels.read_table(file, "\t") or [(0, [])]
        if heading[1] != COLUMNS:
            raise UserError(f"{file}: expected the heading {COLUMNS}, got {heading[1]!r:.80}")
        by_clip: dict[str, dict[str, Any]] = {}
        for number, cells in lines:
            row = by_clip.setdefault(
                cells[0], {"segment": cells[0], "events": [], WHERE: f"{file}:{number}"}
            )
            row["events"].append((number, cells))
        return list(by_clip.values())

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one excerpt into a sample, its events in order of time."""
        stated = sorted((_event(number, cells) for number, cells in row["events"]))
        right = audioset_labels.named([mid for _, _, mid in stated], self._names)
        events = [{"span": [start, end], "label": self._names[mid]} for start, end, mid in stated]
        truth = json_form.read({"spans": events}, Frame())
        segment = row["segment"]
        name = self.file.replace("{segment}", segment).replace("{ytid}", segment.rpartition("_")[0])
        rng = random.Random(f"{self.seed} {segment}")
        offered = audioset_labels.offer(right, self._names, self.offered, rng)
        asked = "What is heard, and from when to when?"
        return Sample(
            id=segment,
            source=source,
            parts=(
                reference(name, self.media_root(), "audio"),
                f"{asked} Possible sounds: {offered}." if offered else asked,
            ),
            truth=truth,
            template="answer_only",
            demo=Demo(answer=truth),
            meta={"where": row[WHERE]},
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the `.tsv` files."""
        return self.root or self.path

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video that the excerpt is from."""
        return str(row["segment"]).rpartition("_")[0]

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return audioset_labels.class_names(Path(self.path) / CLASSES)


def _event(number: int, cells: Sequence[str]) -> tuple[float, float, str]:
    """Return (start, end, machine id) of a line of the file, in seconds."""
    if len(cells) != len(COLUMNS):
        raise UserError(f"line {number}: expected {len(COLUMNS)} cells, got {cells!r:.80}")
    try:
        return float(cells[1]), float(cells[2]), cells[3].strip()
    except ValueError as error:
        raise UserError(f"line {number}: expected start and end in seconds: {error}") from error
