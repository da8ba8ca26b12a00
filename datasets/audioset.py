"""AudioSet: the names of the sounds heard in ten seconds of a video's audio.

Source: Gemmeke et al. 2017, "Audio Set: An ontology and human-labeled dataset for audio events",
ICASSP. Two layouts of the same rows: its own `*_segments.csv` (`--PJHxphWEs, 30.000, 40.000,
"/m/09x0r,/t/dd00088"`: YouTube id, start, end, machine ids of the classes), and the JSON files of AST
and what followed it (arXiv:2104.01778): {"data": [{"wav": "audio/x.flac", "labels":
"/m/068hy,/m/07q6cd_"}, ...]}. The names of the classes are in `class_labels_indices.csv`
(index,mid,display_name).
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
from vlmrl.schema import Demo, Sample, Truth
from vlmrl.system.files import read_json


@dataclass(frozen=True)
class Audioset(Card):
    """Which sounds are heard? AudioSet as its authors publish it, or as AST's JSON files do."""

    origin: ClassVar[str] = "research.google.com/audioset"
    licence: ClassVar[str] = "annotations: CC BY 4.0; recordings: YouTube's terms"
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("labels", "format")

    path: dict[str, str]
    """Split -> `.json` or `.csv` file."""
    classes: str
    """File with the names of the classes, `class_labels_indices.csv`."""
    root: str | None = None
    """Folder of the recordings, in which every `wav` must lie; None: the folder of `classes`."""
    file: str = "{ytid}.wav"
    """Name of a recording for a row of a `.csv`, with `{ytid}`, `{start}` and `{end}` of the row."""
    offered: int = 10
    """Names that a question offers, right and wrong ones together; 0: none."""
    seed: int = 0
    """Seed of the wrong names."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each recording."""
        if split not in self.path:
            there = ", ".join(self.path)
            raise UserError(f"card 'audioset': path has no split {split!r}; there are: {there}")
        file = Path(self.path[split])
        if file.suffix == ".csv":
            return [
                {"cells": cells, WHERE: f"{file}:{number}"}
                for number, cells in audioset_labels.read_table(file)
            ]
        items = read_json(file).get("data")
        if not isinstance(items, list):
            raise UserError(f'{file}: expected {{"data": [...]}}, got data {items!r:.60}')
        return [{"item": item, WHERE: f"{file}: data[{n}]"} for n, item in enumerate(items)]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one recording into a sample."""
        name, mids = self._file_and_labels(row)
        right = audioset_labels.named(
            [mid.strip() for mid in mids.split(",") if mid.strip()], self._names
        )
        if not right:
            raise UserError("expected at least one label, got none")
        rng = random.Random(f"{self.seed} {name}")
        offered = audioset_labels.offer(right, self._names, self.offered, rng)
        asked = f"Which of these sounds are heard: {offered}?" if offered else "What is heard?"
        return Sample(
            id=Path(name).stem,
            source=source,
            parts=(reference(name, self.media_root(), "audio"), asked),
            truth=Truth(labels=tuple(right)),
            template="answer_only",
            demo=Demo(text=", ".join(right)),
            meta={"where": row[WHERE]},
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the names of the classes."""
        return self.root or str(Path(self.classes).parent)

    def corpus(self) -> list[str]:
        """Return questions and answers of the first split."""
        return demonstrations.corpus(self, self.rows(next(iter(self.path))))

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return audioset_labels.class_names(Path(self.classes))

    def _file_and_labels(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the name of the audio file, and its labels as one text."""
        if "item" in row:
            item = row["item"]
            if not isinstance(item, dict):
                raise UserError(f"expected an object, got {item!r:.60}")
            for key in ("wav", "labels"):
                if not isinstance(item.get(key), str) or not item[key]:
                    raise UserError(f"key {key!r}: expected a text, got {item.get(key)!r:.60}")
            return item["wav"], item["labels"]
        cells = row["cells"]
        if len(cells) != 4 or not cells[0]:
            raise UserError(
                f"expected YTID, start_seconds, end_seconds, positive_labels, got {cells!r:.80}"
            )
        name = self.file
        for key, value in zip(("{ytid}", "{start}", "{end}"), cells, strict=False):
            name = name.replace(key, value)
        return name, cells[3]
