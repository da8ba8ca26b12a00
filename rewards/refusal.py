"""Whether the answer declines where nothing can be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import text
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.laws import Laws
from vlmrl.scoring.verifier import Verifier

MAX_CHARS = 1000
"""Longer than any phrase of declining."""


@dataclass(frozen=True)
class Refusal(Verifier):
    """1 if a question without an answer (truth declared none) is declined, 0 if it is answered.

    On a question that has an answer declining scores 0; any other answer is for the other verifiers
    to judge, and this one does not apply. `phrases`: what counts as declining, as the whole answer.

    Used by: the Hallucination Tax (SUM): `phrases: ["I don't know"]`.

    Refuses: an empty answer, a phrase inside a longer answer.

    Source: Hallucination Tax, arXiv 2505.13988.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Refusal(), "I don’t know.", Truth(none=True)).score
    1.0
    """

    laws: ClassVar[Laws] = Laws(truth=("none",), best="I don't know")

    phrases: tuple[str, ...] = (
        "i don't know",
        "i do not know",
        "unanswerable",
        "cannot be determined",
        "not enough information",
    )

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Compare declining with whether there is an answer."""
        if completion.answer is None:
            return Verdict(0.0, note="no answer")
        declines = _plain(completion.answer[:MAX_CHARS]) in map(_plain, self.phrases)
        if sample.truth.none:
            return Verdict(float(declines), answer=completion.answer)
        if declines:
            return Verdict(0.0, answer=completion.answer, note="declines a question with an answer")
        return Verdict.not_applicable("the question has an answer")


def _plain(phrase: str) -> str:
    return text.normalised(phrase.replace("’", "'"))
