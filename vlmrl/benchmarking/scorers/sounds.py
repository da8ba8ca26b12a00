"""Official scorers of tasks about speech, sounds and music."""

from __future__ import annotations

from vlmrl.benchmark_rules import letters
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    letter_scorer,
    option_letters,
    right_letter,
    texts,
    word_score,
)
from vlmrl.schema import Frame, Sample


def _mmsu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMSU's letter: the harness offers four, also where a row has fewer options."""
    offered = {**dict.fromkeys("ABCD", ""), **texts(sample)}
    return word_score(letters.mmmu_letter(answer, offered), right_letter(sample), 0.25)


SCORERS: dict[str, Scorer] = {
    "letter_mmsu": _mmsu,
    "letter_air_bench": letter_scorer(
        lambda a, s: letters.mmau_letter(a.strip(), option_letters(s))
    ),
}
