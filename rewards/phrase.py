"""Decide whether the answer is one of a few set phrases, whatever is true of the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class Phrase(Verifier):
    """Score 1 if the whole answer is one of `phrases`, else 0; both are normalised, as for `exact`.

    It says nothing of correctness: gate it by a verifier that does.

    Published sets: VideoAuto-R1: the default, of the first answer, `gated_by` the second.

    Refuses: an empty answer, a phrase inside a longer answer.

    Source: VideoAuto-R1, arXiv 2601.05175.
    Differs: there the first answer only begins with the phrase.

    Raises:
        ValueError: no phrases.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Phrase(phrases=("Let me think",)), "let me think.", Truth()).score
    1.0
    """

    laws: ClassVar[Laws] = Laws(best="Let me think", options=({"phrases": ("let me think",)},))

    phrases: tuple[str, ...] = ("Let's analyze the problem step by step",)
    """What is paid, as the whole answer."""

    def __post_init__(self) -> None:
        """Refuse to wait for nothing."""
        if not self.phrases:
            raise ValueError("phrases: expected at least one")

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Compare with every phrase."""
        answer = completion.answer
        if answer is None:
            return Verdict(0.0, note="no answer")
        return Verdict(float(parsing.declines(answer, self.phrases)), answer=answer)
