"""Decide whether the answer picks the right option of a multiple-choice question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import choices, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.laws import Laws
from vlmrl.scoring.verifier import AnswerVerifier


@dataclass(frozen=True)
class Choice(AnswerVerifier):
    """Score 1 if the answer picks the right option, by its letter or by its whole text, else 0.

    The letter is a word of its own (`B`, `(B)`, `The answer is B.`, `B. bird`). The truth is a
    letter, or the text of an option.

    Used by: VLM-R1, VideoChat-R1, Video-R1, Med-R1, VisualThinker, GPG, Observe-R1, R1-AQA (text),
    VL-Cogito, HumanOmniV2.

    Refuses: several different letters, a letter with another option's text anywhere in the answer,
    letters inside words, the A of "A dog", a letter beyond the options.

    Source: VisualThinker-R1-Zero's "last stand-alone letter".
    Differs: an answer that names several options picks none, so that listing them all cannot pay.

    Raises:
        ValueError: the truth is neither a letter nor the text of an option.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(choice="B", options=("cat", "bird"))
    >>> [judge(Choice(), answer, truth).score for answer in ("B. bird", "bird", "A or B")]
    [1.0, 1.0, 0.0]
    """

    needs: ClassVar[tuple[str, ...]] = ("choice",)
    laws: ClassVar[Laws] = Laws(junk="ANSWER A B")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare the picked option with the right one."""
        picked, note = choices.read_choice(answer, truth.options)
        right = _letter(truth)
        if right is None:  # the truth is a text without options to choose from
            assert truth.choice is not None
            same = text.normalised(answer) == text.normalised(truth.choice)
            return Verdict(float(same), answer=answer)
        return Verdict(float(picked == right), answer=picked, note=note)


def _letter(truth: Truth) -> str | None:
    """Return the letter of the right option, or None if the truth is a text and there are no options."""
    assert truth.choice is not None
    stated = truth.choice.strip("() .")
    last = chr(ord("A") + len(truth.options) - 1) if truth.options else "Z"
    texts = [text.normalised(option) for option in truth.options or ()]
    if text.normalised(truth.choice) in texts:
        return chr(ord("A") + texts.index(text.normalised(truth.choice)))
    if len(stated) == 1 and "A" <= stated.upper() <= last:
        return stated.upper()
    if truth.options:
        raise ValueError(f"the right choice {truth.choice!r} is none of {truth.options!r}")
    return None
