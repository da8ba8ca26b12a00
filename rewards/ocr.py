"""Measure how close a transcription is to the text in the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import text
from vlmrl.benchmark_rules import VERSIONS, Harness, words
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Ocr(AnswerVerifier):
    """Closeness of the answer to the best of the accepted texts, in [0, 1].

    `measure`: `cer` 1 - character errors / characters of the truth, floored at 0; `wer` the same in
    words; `anls` 1 - distance / longer length, 0 below `cut`; `exact` 1 if equal. Texts are in
    Unicode NFKC with white space collapsed, and in lower case unless `ignore_case` is false.
    `official`: ANLS as `lmms_eval` or `vlmevalkit` computes it (`words.anls`).

    Published sets: Video-R1, HumanOmniV2: `measure: wer, ignore_case: false`; Visionary-R1, VLM-R1
    default: `measure: anls, cut: 0`; DocVQA, InfoVQA: `measure: anls`.

    Refuses: an empty answer. Text before or after the right one counts as errors.

    Source: ANLS: Biten et al. 2019, arXiv 1905.13648; distances by rapidfuzz.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Ocr(), "EX1T", Truth(text=("EXIT",))).score
    0.75
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(
        options=(
            {},
            {"measure": "wer", "ignore_case": False},
            {"measure": "anls"},
            {"measure": "anls", "cut": 0.0},
            {"measure": "exact"},
        ),
        loose=({"official": "lmms_eval"}, {"official": "vlmevalkit"}),
    )

    measure: Literal["cer", "wer", "anls", "exact"] = "cer"
    """`cer`: 1 - character errors / characters of the truth, floored at 0; `wer`: the same in words;
    `anls`: 1 - distance / longer length, 0 below `cut`; `exact`: 1 if equal."""
    cut: float = 0.5
    """ANLS below it is 0."""
    ignore_case: bool = True
    """Whether texts are compared in lower case."""
    official: Harness | None = None
    """ANLS as a harness computes it (`words.anls`); to compare, not to train."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted text; the best counts."""
        assert truth.text is not None
        if self.official:
            score = words.anls(answer, truth.text, self.cut)
            return Verdict(score, answer=answer, note=VERSIONS[self.official])
        plain = self._form(answer)
        score = max(self._closeness(plain, self._form(accepted)) for accepted in truth.text)
        return Verdict(score, answer=answer)

    def _form(self, stated: str) -> str:
        form = text.unicode_form(stated)
        return form.casefold() if self.ignore_case else form

    def _closeness(self, read: str, right: str) -> float:
        if not read or not right or self.measure == "exact":
            return float(read == right and bool(read))
        if self.measure == "wer":
            return text.closeness(read.split(), right.split())
        if self.measure == "cer":
            return text.closeness(read, right)
        longest = max(len(read), len(right))
        similarity = 1 - text.edit_distance(read, right, limit=longest) / longest
        return similarity if similarity >= self.cut else 0.0
