"""Official scorers of tasks about speech, sounds and music."""

from __future__ import annotations

from vlmrl.benchmark_rules import letters, speech
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
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


def _mmau_pro(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score MMAU-Pro's options by their text; whatever else is said is left to the embedding.

    The text of the right one must be that of the truth to the letter, so that of some rows none is right.
    """
    options = [*texts(sample).values()]
    if not options or answer in options:
        return Score(float(answer in options and answer == sample.meta["answer"]), reading=answer)
    return Score(0.0, read=False)


def _bbh(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score VoiceBench's puzzles: yes or (b) against no or (a)."""
    reading = speech.voicebench_bbh(answer, str(sample.meta["task"]))
    right = accepted_texts(sample)[0].lower() in ("yes", "b")
    return Score(float(reading == right), reading is not None, chance=0.5)


SCORERS: dict[str, Scorer] = {
    "letter_mmsu": _mmsu,
    "letter_air_bench": letter_scorer(
        lambda a, s: letters.mmau_letter(a.strip(), option_letters(s))
    ),
    "text_mmau_pro": _mmau_pro,
    "voicebench_letter": lambda a, s, _: word_score(speech.voicebench_letter(a), right_letter(s)),
    "voicebench_bbh": _bbh,
    "voicebench_refusal": lambda a, s, _: Score(float(speech.voicebench_refuses(a))),
}
