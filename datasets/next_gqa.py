"""NExT-GQA: a question about a video with five options, and the spans of time that prove the answer.

Source: Xiao et al. 2024, "Can I Trust Your Answer? Visually Grounded Video Question Answering",
arXiv:2309.01327. `<split>.csv` (video_id, question, answer, qid, type, a0 ... a4; NExT-QA's older
files say `video`, and the answer's number), `gsub_<split>.json` ({video: {"duration": 34, "location":
{qid: [[start, end], ...]}}}, in seconds; there is none for train) and `map_vid_vidorID.json` (video ->
path of the video without its suffix).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.answers.parsing import is_number
from vlmrl.data import demonstrations
from vlmrl.data.annotations import spans_truth, video_named
from vlmrl.data.card import Card
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.schema import Demo, Sample, Truth
from vlmrl.system.files import read_json

LETTERS = "ABCDE"


@dataclass(frozen=True)
class NextGqa(Card):
    """Answer with a letter and prove it by spans of time; NExT-GQA as published."""

    origin: ClassVar[str] = "arXiv:2309.01327; clips: VidOR"
    licence: ClassVar[str] = "annotations: MIT; clips: YFCC100M's licences"
    media: ClassVar[tuple[str, ...]] = ("video",)
    verifiers: ClassVar[tuple[str, ...]] = ("choice", "temporal_iou", "format")

    path: str
    """Folder of the annotation files."""
    videos: str = "NExTVideo"
    """Folder of the videos, relative to `path`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return one row for each question."""
        if split not in self.splits:
            raise UserError(f"next_gqa has no split {split!r}; there are: {', '.join(self.splits)}")
        folder = Path(self.path)
        file = folder / f"{split}.csv"
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                rows = list(csv.DictReader(stream))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file}: {error}") from error
        grounded = folder / f"gsub_{split}.json"
        proofs = read_json(grounded) if grounded.exists() else {}
        names = read_json(folder / "map_vid_vidorID.json")
        questions = []
        for number, row in enumerate(rows, start=2):
            video = row.get("video_id") or row.get("video") or ""
            extra = {"video": video, "proof": proofs.get(video), "name": names.get(video)}
            questions.append({**row, **extra, WHERE: f"{file}:{number}"})
        return questions

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one question into a sample, with spans if there are any."""
        options = [row.get(f"a{n}") for n in range(len(LETTERS))]
        question = row.get("question")
        if not question or not all(options):
            raise UserError("columns question, a0 ... a4: expected texts, got an empty one")
        if not isinstance(row["name"], str) or not row["name"]:
            raise UserError(f"video {row['video']!r} is not in map_vid_vidorID.json")
        letter = LETTERS[_right(row.get("answer"), options)]
        listed = " ".join(f"({n}) {text}" for n, text in zip(LETTERS, options, strict=True))
        truth, template = Truth(choice=letter, options=tuple(LETTERS)), "think_answer"
        demo = Demo(text=letter)
        if row["proof"] is not None:
            spans, duration = _proof(row["proof"], str(row.get("qid")))
            truth = spans_truth(spans, duration, choice=letter, options=list(LETTERS))
            thought = "; ".join(f"{s.start:g} s to {s.end:g} s" for s in truth.spans or ())
            template, demo = "think_answer_glue", Demo(thought, letter, evidence=truth.spans)
        return Sample(
            id=f"{row['video']}-{row.get('qid')}",
            source=source,
            parts=(
                video_named(Path(self.path) / self.videos, row["name"]),
                f"{question.strip().capitalize()}? {listed}",
            ),
            truth=truth,
            template=template,
            demo=demo,
            meta={"where": row[WHERE], "type": row.get("type", "")},
        )

    def media_root(self) -> str:
        """Return the folder of the videos."""
        return str(Path(self.path) / self.videos)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the video."""
        return str(row["video"])

    def corpus(self) -> list[str]:
        """Return questions and answers of the first split that exists."""
        there = [split for split in self.splits if (Path(self.path) / f"{split}.csv").exists()]
        return demonstrations.corpus(self, self.rows((there or ["train"])[0]))


def _proof(proof: Any, question: str) -> tuple[list[Any], float]:
    """Return the spans that gsub holds for a question, and the video's duration, in seconds."""
    location = proof.get("location") if isinstance(proof, Mapping) else None
    if not isinstance(location, Mapping) or not is_number(proof.get("duration")):
        raise UserError(f"gsub: expected duration and location, got {proof!r:.80}")
    spans = location.get(question)
    if not isinstance(spans, list) or not spans:
        raise UserError(f"question {question!r} has no spans in gsub")
    return spans, float(proof["duration"])


def _right(answer: Any, options: Sequence[Any]) -> int:
    """Return the index of the right option, which is given by its text or its number."""
    if answer in options:
        return options.index(answer)
    if isinstance(answer, str) and answer.isdigit() and int(answer) < len(options):
        return int(answer)
    raise UserError(f"answer {answer!r:.60} is none of the options")
