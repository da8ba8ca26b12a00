"""Measure how well speech was transcribed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Asr(AnswerVerifier):
    """1 - word (`wer`) or character error rate (`cer`), floored at 0; the best truth counts.

    Both texts are in Unicode NFKC and lower case, without punctuation (apostrophes stay), which
    speech does not have.

    Used by: Video-R1 (OCR by WER), speech recognition.

    Refuses: an empty answer; additional words count as errors.

    Source: word error rate: Levenshtein distance in words / words of the truth; rapidfuzz.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Asr(), "Seven, four two", Truth(text=("seven four nine two",))).score
    0.75
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(options=({}, {"measure": "cer"}))

    measure: Literal["wer", "cer"] = "wer"
    """`wer`: errors in words; `cer`: in characters."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted transcript."""
        assert truth.text is not None
        spoken = text.spoken(answer)
        rights = [text.spoken(accepted) for accepted in truth.text]
        if self.measure == "wer":
            score = max(text.closeness(spoken, right) for right in rights)
        else:
            score = max(text.closeness(" ".join(spoken), " ".join(right)) for right in rights)
        return Verdict(score, answer=answer)
