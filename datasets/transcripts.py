"""Speech and its transcript: the layout of LibriSpeech, or a manifest as NeMo writes it.

Source: Panayotov et al. 2015, "LibriSpeech: an ASR corpus based on public domain audio books", ICASSP:
`test-clean/61/70968/61-70968.trans.txt` with lines `61-70968-0000 HE BEGAN A CONFUSED COMPLAINT`, and
`61-70968-0000.flac` next to it. Manifest: one JSON object per line, {"audio_filepath": "a.wav", "text":
"he began", "duration": 3.2, "offset": 0.0}, in seconds; the last two select a part of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.answers.parsing import is_number
from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.rows import WHERE
from vlmrl.data.files.text_rows import JsonlRows
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Demo, Media, Sample, Truth

QUESTION = "Write down what is said."


@dataclass(frozen=True)
class Transcripts(Card):
    """What is said? LibriSpeech as published, or NeMo manifests."""

    origin: ClassVar[str] = "openslr.org/12; manifests of yours"
    licence: ClassVar[str] = "LibriSpeech: CC BY 4.0"
    media: ClassVar[tuple[str, ...]] = ("audio",)
    verifiers: ClassVar[tuple[str, ...]] = ("asr", "format")

    path: dict[str, str]
    """Split -> folder in LibriSpeech's layout (`LibriSpeech/test-clean`), or manifest file."""
    root: str | None = None
    """Folder in which all recordings lie and from which a manifest's relative paths start; None: the
    folder, or that of the manifest, of the first split."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each utterance, read lazily where the file allows."""
        if split not in self.path:
            there = ", ".join(self.path)
            raise UserError(f"card 'transcripts': path has no split {split!r}; there are: {there}")
        path = Path(self.path[split])
        if path.is_file():
            return JsonlRows(path)
        files = sorted(path.rglob("*.trans.txt"))
        if not files:
            raise UserError(
                f"{path}: expected a manifest, or a folder with *.trans.txt files in it"
            )
        return [row for file in files for row in _utterances(file)]

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one utterance into a sample."""
        text = row.get("text")
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"key 'text': expected a text, got {text!r:.60}")
        transcript = " ".join(text.split())
        audio = self._audio(row)
        part = "" if audio.start is None else f"@{audio.start:g}"
        return Sample(
            id=f"{Path(audio.name).stem}{part}",
            source=source,
            parts=(audio, QUESTION),
            truth=Truth(text=(transcript,)),
            template="answer_only",
            demo=Demo(text=transcript),
            meta={"where": row[WHERE]},
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the first split."""
        first = Path(next(iter(self.path.values())))
        return self.root or str(first.parent if first.is_file() else first)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the audio file: its parts stay together."""
        return str(row.get("audio_filepath"))

    def corpus(self) -> list[str]:
        """Return questions and transcripts of the first split."""
        return demonstrations.corpus(self, self.rows(next(iter(self.path))))

    def _audio(self, row: Mapping[str, Any]) -> Media:
        medium = reference(row.get("audio_filepath"), self.media_root(), "audio")
        start, seconds = row.get("offset"), row.get("duration")
        for key, value in (("offset", start), ("duration", seconds)):
            if value is not None and not (is_number(value) and value >= 0):
                raise UserError(f"key {key!r}: expected seconds, got {value!r:.60}")
        if start is None:
            return medium
        return replace(medium, start=start, end=None if seconds is None else start + seconds)


def _utterances(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a `.trans.txt` under the keys of a manifest."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        name, _, text = line.partition(" ")
        audio = str(file.absolute().parent / f"{name}.flac")
        rows.append({"audio_filepath": audio, "text": text, WHERE: f"{file}:{number}"})
    return rows
