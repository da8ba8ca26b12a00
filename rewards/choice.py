"""Decide whether the answer picks the right option of a multiple-choice question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import geometry, parsing, text
from vlmrl.schema import Completion, Span, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Choice(AnswerVerifier):
    """Score 1 if the answer picks the right option, by its letter or by its whole text, else 0.

    The letter is a word of its own (`B`, `(B)`, `The answer is B.`, `B. bird`). The truth is a
    letter, or the text of an option. `proof`: the spans of the `<glue>` tag must overlap the true ones
    as well, by this IoU.

    Published sets: NExT-GQA, VideoChat-R1 grounded QA: `proof: 0.5` with template think_answer_glue
    (NExT-GQA asks for that share of the stated time, which a moment inside the true span has).

    Used by: VLM-R1, VideoChat-R1, Video-R1, Med-R1, VisualThinker, GPG, Observe-R1, R1-AQA (text),
    VL-Cogito, HumanOmniV2.

    Refuses: several different letters, a letter with another option's text anywhere in the answer,
    letters inside words and names (`vitamin B`), the A of "A dog", a letter beyond the options, one that
    is denied or left open (`not B`, `B?`), a grade (`B+`).

    Source: VisualThinker-R1-Zero's "last stand-alone letter".
    Differs: an answer that names several options picks none, so that listing them all cannot pay.

    Raises:
        ValueError: the truth is neither a letter nor the text of an option, or has no spans for a proof.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(choice="B", options=("cat", "bird"))
    >>> [judge(Choice(), answer, truth).score for answer in ("B. bird", "bird", "A or B")]
    [1.0, 1.0, 0.0]
    """

    needs: ClassVar[tuple[str, ...]] = ("choice",)
    laws: ClassVar[Laws] = Laws(junk="ANSWER A B")

    proof: float = 0.0
    """Least IoU of the `<glue>` spans with the true ones, in [0, 1]; 0: none are asked for."""

    def __post_init__(self) -> None:
        """Refuse a proof that no spans reach."""
        if not 0 <= self.proof <= 1:
            raise ValueError(f"expected proof from 0 to 1, got {self.proof}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Judge the option, and what proves it."""
        verdict = self._pick(answer, truth)
        if not self.proof:
            return verdict
        if not truth.spans:
            raise ValueError(f"expected true spans for the proof, got {truth.spans!r}")
        start, end = completion.parsed.spans.get("glue", (0, 0))
        spans, note = parsing.spans(completion.text[start:end], completion.frame)
        iou = geometry.interval_iou(spans, truth.spans)
        parts = {"choice": verdict.score or 0.0, "iou": iou, "iop": _iop(spans, truth.spans)}
        proved = verdict.score == 1 and iou >= self.proof
        return Verdict(float(proved), parts, verdict.answer, verdict.note or note)

    def _pick(self, answer: str, truth: Truth) -> Verdict:
        """Compare the picked option with the right one."""
        picked, note = parsing.read_choice(answer, truth.options)
        right = _letter(truth)
        if right is None:  # the truth is a text without options to choose from
            assert truth.choice is not None
            return Verdict(float(text.equal(answer, truth.choice)), answer=answer)
        return Verdict(float(picked == right), answer=picked, note=note)


def _iop(spans: Sequence[Span], right: Sequence[Span]) -> float:
    """Return the share of the stated time that is true, 0 where no time is stated."""
    covered, true = geometry.merged(spans), geometry.merged(right)
    stated = sum(end - start for start, end in covered)
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in covered for b in true)
    return both / stated if stated > 0 else 0.0


def _letter(truth: Truth) -> str | None:
    """Return the letter of the right option, or None if the truth is a text and there are no options."""
    assert truth.choice is not None
    letter = parsing.letter_of(truth.choice, truth.options)
    if letter is None and truth.options:
        raise ValueError(f"the right choice {truth.choice!r} is none of {truth.options!r}")
    return letter
