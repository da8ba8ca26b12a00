"""Official scorers of mathematics, physics and puzzles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmrl.benchmark_rules import science
from vlmrl.benchmarking.scores import (
    Score,
    Scorer,
    accepted_texts,
    judged_scorer,
    letter_scorer,
    right_letter,
    texts,
    word_score,
)
from vlmrl.errors import import_extra
from vlmrl.schema import Frame, Sample

MAX_MATH = 20_000
"""Characters of an answer that math-verify is given."""
PARSING_SECONDS = 10
"""Time that OlympiadBench's rule has for each text."""


def _reasoned(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as lmms-eval's tasks for reasoning do: a letter or text, or math-verify finds it equal."""
    reading = science.reasoned_reading(science.without_thoughts(answer))
    right = accepted_texts(sample)[0]
    equal = science.reasoned_right(reading, right) or _verified(reading, right.strip())
    return Score(float(equal), bool(reading), reading)


def _verified(reading: str, right: str) -> bool:
    library = import_extra("math_verify", "math")
    parsed = library.parse(reading[:MAX_MATH])
    return bool(library.verify(library.parse(right.removesuffix(".").strip()), parsed))


def _olympiad(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score as the figure `math_verify` of lmms-eval's olympiadbench_boxed: the last box, or formula."""
    library = import_extra("math_verify", "math")
    right = accepted_texts(sample)[0].rstrip("。")
    if right.startswith("$") and right.endswith("$"):
        right = f"\\boxed{{{right.strip('$')}}}"
    elif "\\boxed" not in right:
        right = f"\\boxed{{{right}}}"
    parsed, wanted = _formulas(library, answer.strip()[:MAX_MATH]), _formulas(library, right)
    equal = parsed and library.verify(wanted, parsed, timeout_seconds=PARSING_SECONDS)
    return Score(float(bool(equal)), bool(parsed))


def _formulas(library: Any, text: str) -> list[Any]:
    usual = library.LatexExtractionConfig(boxed_match_priority=0)
    how = replace(usual, normalization_config=replace(usual.normalization_config, boxed="last"))
    parsed: list[Any] = library.parse(
        text,
        extraction_mode="first_match",
        extraction_config=[how],
        parsing_timeout=PARSING_SECONDS,
    )
    return parsed


def _cmmmu(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score CMMMU by the kind of question; the harness draws where it reads no letters, or no judgement."""
    right, kind = accepted_texts(sample)[0], sample.meta["type"]
    if kind == "选择":
        letters = science.cmmmu_letters(answer, texts(sample))
        return word_score(letters, right, 0.25 if len(right) == 1 else 0.0)
    if kind == "判断":
        return word_score(science.cmmmu_judged(answer), right, 0.5)
    return Score(float(science.cmmmu_blank(answer, right)))


def _phyx(rule: Callable[[str, str], bool | None]) -> Scorer:
    """Make a scorer of a rule that compares an answer with the letter, or the text, of the truth."""
    return judged_scorer(lambda answer, sample: rule(answer, accepted_texts(sample)[0]))


def _emma(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score what a judge is sure to find right: the truth to the letter; the rest is unread."""
    reading = science.emma_reading(answer)
    right = reading.lower().strip() == accepted_texts(sample)[0].lower().strip()
    return Score(float(right), right, reading)


SCORERS: dict[str, Scorer] = {
    "reasoned_lmms": _reasoned,
    "olympiad_lmms": _olympiad,
    "puzzle_lmms": letter_scorer(lambda a, s: science.puzzle_letter(a, s.truth.options)),
    "puzzle_vlmeval": lambda a, s, _: word_score(science.stated_letter(a), right_letter(s)),
    "wemath_vlmeval": lambda a, s, _: word_score(science.wemath_letter(a), right_letter(s)),
    "cmmmu_lmms": _cmmmu,
    "phyx_choice": _phyx(science.phyx_choice),
    "phyx_choice_judged": _phyx(science.phyx_choice_judged),
    "phyx_open": _phyx(science.phyx_open),
    "phyx_open_judged": _phyx(science.phyx_open_judged),
    "emma": _emma,
}
