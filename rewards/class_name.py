"""Decide whether the answer is the name of the right class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vlmrl.answers import text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class ClassName(AnswerVerifier):
    """Score 1 if the answer names the right class, else 0.

    Names are normalised (`text.normalised`), underscores and hyphens count as spaces. `aliases`
    gives further names of a class: `{dog: [hound, canis lupus familiaris]}`.

    Used by: Visual-RFT classification, GPG, CLS-RL.

    Refuses: an answer that contains the name, or is contained in it; a list of all classes.

    Source: Visual-RFT, arXiv 2503.01785. Differs: equality instead of containment either way round,
    which pays `a` and the list of classes.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(ClassName(), "Passion_Flower", Truth(text=("passion flower",))).score
    1.0
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(options=({}, {"aliases": {"abc": ["cab"]}}))

    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further names of a class: `{dog: [hound, canis lupus familiaris]}`."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with the class's names."""
        assert truth.text is not None
        names = [*truth.text]
        for name, others in self.aliases.items():
            if any(text.equal(_spaced(name), _spaced(accepted)) for accepted in truth.text):
                names += others
        stated = _spaced(answer)
        right = any(text.equal(stated, _spaced(name)) for name in names)
        return Verdict(float(right), answer=text.normalised(stated))


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace("-", " ")
