"""Drum hits of kits that are installed: one to `most` of them, one after another; which are heard?

Any folder of kits does, however deep; a recording's name says what it is (`Kick-Med.wav`). Debian's
`hydrogen-drumkits` makes the one that is read unless another is named (14 kits, free licences). A hash of its
name decides in which split a recording occurs: those of `val` and `test` are never heard in training.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vlmrl.data import audio_files, demonstrations
from vlmrl.data.card import Card
from vlmrl.errors import UserError, import_extra
from vlmrl.schema import Demo, Media, Sample, Truth
from vlmrl.system.seeds import uniform

INSTALLED = "/usr/share/hydrogen/data/drumkits"
"""Where Debian's package puts its kits."""
KINDS: Mapping[str, str] = {
    "kick": r"kick|bass ?drum",
    "snare": "snare",
    "hat": "hat",
    "tom": "tom",
    "crash": "crash|splash",
    "ride": "ride",
}
"""Kind -> what names of its recordings hold; one that fits two kinds is of none."""
ENDINGS = (".wav", ".flac")
COUNTS = {"train": 1200, "val": 60, "test": 200}
SHARES = {"train": (0.0, 0.65), "val": (0.65, 0.75), "test": (0.75, 1.0)}
"""Share of the recordings that belongs to each split, as [from, to)."""
DRAWS = 20
"""How often a sequence is drawn, at most, for each that is wanted."""
QUESTION = "Which drums, in order?"
SECONDS = 0.6
"""How long each hit is heard; the last tenth of it fades."""


@dataclass(frozen=True)
class DrumHits(Card):
    """Hits of drums, each of a kit and a take of its own, and the names of all of them in order."""

    origin: ClassVar[str] = "kits of yours; Debian's `hydrogen-drumkits` has 14"
    licence: ClassVar[str] = "see the kits' own; most of Debian's are GPL-2"
    splits: ClassVar[tuple[str, ...]] = tuple(COUNTS)
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("asr", "exact", "format")

    path: str = INSTALLED
    """Folder of the kits."""
    most: int = 3
    """Most hits of a sample."""
    count: int | None = None
    """Samples per split; None: train 1200, val 60, test 200."""
    missing: float = 0.0
    """Chance that a demonstration leaves a hit out; one always stays."""

    def __post_init__(self) -> None:
        if self.most < 1 or (self.count is not None and self.count < 1):
            raise ValueError(
                f"expected most and count of at least 1, got most {self.most}, count {self.count}"
            )
        if not 0 <= self.missing < 1:
            raise ValueError(f"missing: expected a chance in [0, 1), got {self.missing}")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each sample: the recordings that follow each other, and their kinds.

        Raises:
            UserError: there is no such split, or no folder of kits.
        """
        if split not in COUNTS:
            raise UserError(f"card 'drum_hits' has no split {split!r}: {', '.join(COUNTS)}")
        by_kind = _recordings(self.path, split)
        rng, count = random.Random(f"hits {split}"), self.count or COUNTS[split]
        drawn: dict[tuple[str, ...], list[str]] = {}
        for _ in range(DRAWS * count):  # no sequence twice, as far as there are enough
            kinds = rng.choices(sorted(by_kind), k=rng.randint(1, self.most))
            drawn.setdefault(tuple(rng.choice(by_kind[kind]) for kind in kinds), kinds)
            if len(drawn) == count:
                break
        return [
            {"id": f"drums-{split}-{number}", "kinds": kinds, "files": files}
            for number, (files, kinds) in enumerate(drawn.items())
        ]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Put the hits of a row one after another."""
        kinds = row["kinds"]
        rng = random.Random(f"demonstration {row['id']}")
        kept = [kind for kind in kinds if rng.random() >= self.missing] or [rng.choice(kinds)]
        return Sample(
            id=row["id"],
            source=source,
            parts=(self._audio(row["files"]), QUESTION),
            truth=Truth(text=(" ".join(kinds),)),
            template="answer_only",
            demo=Demo(text=" ".join(kept)),
        )

    def _audio(self, files: Sequence[str]) -> Media:
        """Return the hits as one medium, 16-bit WAV: each as loud as the others, for the same time."""
        audios = audio_files.read(files, self.path, "drum_hits")
        rate = audios[0].rate
        fade = np.clip(np.linspace(10, 0, round(SECONDS * rate)), 0, 1)
        hits = np.zeros((len(audios), len(fade)), np.float32)
        for hit, audio in zip(hits, audios, strict=True):
            samples = audio.samples[: len(fade)]
            hit[: len(samples)] = 0.5 * samples / max(float(np.abs(samples).max()), 1e-6)
        return audio_files.write((hits * fade).ravel(), rate)

    def media_root(self) -> str:
        """Return the folder."""
        return self.path

    def corpus(self) -> list[str]:
        """Return the question, with answers as the model is to write them."""
        return demonstrations.corpus(self, self.rows("train")[:200])

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write short tones as hits."""
        soundfile = import_extra("soundfile", "audio")
        for pitch, kind in enumerate(KINDS, start=1):
            for take in range(16):
                wave = 0.3 * np.sin(np.arange(1600) * 0.05 * (pitch + take / 100))
                soundfile.write(folder / f"{kind}_{take}.wav", wave, 16000)
        return {"path": str(folder), "count": 4}


@functools.lru_cache
def _recordings(path: str, split: str) -> Mapping[str, Sequence[str]]:
    """Return by kind the files of a split, relative to the folder.

    Raises:
        UserError: there is no folder, or a kind has no file.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(
            f"card 'drum_hits': there is no folder {path!r} of kits; install Debian's "
            f"(`apt-get install hydrogen-drumkits`, 143 MB) or name a folder as option 'path'"
        )
    low, high = SHARES[split]
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root).as_posix()
        kinds = [kind for kind, form in KINDS.items() if re.search(form, file.stem.lower())]
        if file.suffix.lower() in ENDINGS and len(kinds) == 1 and low <= uniform(name) < high:
            by_kind[kinds[0]].append(name)
    if bare := [kind for kind, files in by_kind.items() if not files]:
        raise UserError(f"{path}: expected recordings of each kind for {split}, got no {bare[0]}")
    return by_kind
