"""Official scorers of verdicts on two answers: the policy is the judge."""

from __future__ import annotations

from vlmrl.benchmark_rules import preferences
from vlmrl.benchmarking.scores import Score, Scorer, number_scorer, right_letter
from vlmrl.schema import Frame, Sample


def _bracketed(answer: str, sample: Sample, frame: Frame) -> Score:
    """Score Multimodal RewardBench as lmms-eval does: A where there is no verdict."""
    letter = preferences.bracketed_verdict(answer)
    right = (letter or "A") == right_letter(sample)
    return Score(float(right), letter is not None, letter or "")


SCORERS: dict[str, Scorer] = {
    "better_answer": number_scorer(preferences.better_answer),
    "bracketed_verdict": _bracketed,
}
