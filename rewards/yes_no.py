"""Decide whether the answer says yes where yes is right, and no where no is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import AnswerForm, Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class YesNo(AnswerVerifier):
    """Score 1 if the answer says yes or no as the truth does, else 0; only whole words count.

    Used by: VLM-R1 (yes_no), HumanOmniV2 (judge).

    Refuses: an answer with both words, with the word denied (`not yes`, `yes is wrong`) or left open
    (`perhaps yes`), words that merely contain them ("nothing", "eyes").

    Source: VLM-R1, arXiv 2504.07615, which looks for substrings.

    Raises:
        ValueError: the truth says neither or both.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(YesNo(), "Yes, it is.", Truth(text=("yes",))).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("text", "choice")
    laws: ClassVar[Laws] = Laws(truth=("yes or no",), junk="ANSWER yes no")

    def answer_form(self) -> AnswerForm:
        """Ask for the word, which the text says where there is one."""
        return AnswerForm(("text",))

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare what the answer says with the truth."""
        stated = truth.choice if truth.text is None else truth.text[0]
        right, why = parsing.read_yes_no(stated or "")
        if right is None:
            raise ValueError(f"the truth {stated!r} says {why}")
        word, note = parsing.read_yes_no(answer)
        return Verdict(float(word == right), answer=word, note=note)
