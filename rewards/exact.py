"""Decide whether the answer equals an accepted text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Exact(AnswerVerifier):
    """Score 1 if the answer equals one of the accepted texts, else 0.

    Both are normalised: Unicode NFKC, case folded, white space collapsed, punctuation at the ends
    removed. `normalise: false` compares verbatim (CLS-RL's No-Thinking accuracy).

    Published sets: R1-V, R1-AQA, VideoChat-R1 cls, VLM-R1 all_match, Visionary-R1: the defaults.

    Refuses: an empty answer, an answer that merely contains the text, a symbolic match of numbers
    inside names (`Airbus 747` is not `Boeing 747`), a question (`7?`).

    Source: R1-V's accuracy reward, without its symbolic stage.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Exact(), "otago  united.", Truth(text=("Otago United",))).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(options=({}, {"normalise": False}))

    normalise: bool = True
    """Whether both texts are normalised; otherwise only white space at the ends is removed."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted text."""
        assert truth.text is not None
        if not self.normalise:
            plain = answer.strip()
            return Verdict(float(plain in map(str.strip, truth.text)), answer=plain)
        right = any(text.equal(answer, accepted) for accepted in truth.text)
        return Verdict(float(right), answer=text.normalised(answer))
