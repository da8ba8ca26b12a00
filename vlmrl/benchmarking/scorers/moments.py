"""Official scorers of questions about long videos, of motion, and of moments in a video."""

from __future__ import annotations

from vlmrl.benchmark_rules import letters
from vlmrl.benchmarking.scores import Scorer, letter_scorer, texts
from vlmrl.schema import Sample


def _egoschema(answer: str, sample: Sample) -> str | None:
    listed = {letter: f"{letter}. {text}" for letter, text in texts(sample).items()}
    return letters.egoschema_letter(answer, listed)


SCORERS: dict[str, Scorer] = {
    "letter_egoschema": letter_scorer(_egoschema),
    "letter_motion": letter_scorer(lambda a, s: letters.motion_letter(a)),
    "letter_videomathqa": letter_scorer(lambda a, s: letters.videomathqa_letter(a)),
}
