"""Decide whether the answer declines where nothing can be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class Refusal(Verifier):
    """Score 1 if a question without an answer is declined, 0 if it is answered.

    A question has no answer if its truth is declared none (an explicit nothing such as `none`
    declines it too), or if an accepted text is itself one of `phrases`. On a question that has an
    answer declining scores 0; any other answer is for the other verifiers to judge, and this one
    does not apply.

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

    phrases: tuple[str, ...] = parsing.REFUSALS
    """What counts as declining, as the whole answer."""

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Compare declining with whether there is an answer."""
        answer, truth = completion.answer, sample.truth
        if answer is None:
            return Verdict(0.0, note="no answer")
        declines = parsing.declines(answer, self.phrases)
        if truth.none:
            return Verdict(float(declines or parsing.says_nothing(answer)), answer=answer)
        if any(parsing.declines(accepted, self.phrases) for accepted in truth.text or ()):
            return Verdict(float(declines), answer=answer)
        if declines:
            return Verdict(0.0, answer=answer, note="declines a question with an answer")
        return Verdict.not_applicable("the question has an answer")
