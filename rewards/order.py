"""Decide whether names are in their right order, or how many of them are at their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Order(AnswerVerifier):
    """1 for the right order, else `discount` times the share of names that are at their place, in [0, 1].

    An answer that does not list each name exactly once scores 0.

    Published sets: Visual Jigsaw: the default, with `discount: 0` for up to four pieces; Jigsaw-R1:
    `discount: 1`.

    Refuses: a name twice, a name left out, other names, two lists.

    Source: Visual Jigsaw, arXiv 2509.25190, section 3.1, and its reward; Jigsaw-R1, arXiv 2505.23590.

    Raises:
        ValueError: a discount outside [0, 1].

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> truth = Truth(more={"order": ("3", "1", "2")})
    >>> [judge(Order(discount=0.3), answer, truth).score for answer in ("3, 1, 2", "3, 2, 1", "3, 1")]
    [1.0, 0.09999999999999999, 0.0]
    """

    needs: ClassVar[tuple[str, ...]] = ("order",)
    laws: ClassVar[Laws] = Laws(
        junk="ANSWER, zzzz", options=({}, {"discount": 0.0}, {"discount": 1.0})
    )

    discount: float = 0.2
    """What a share of right places is multiplied by where not all are right."""

    def __post_init__(self) -> None:
        """Refuse to pay more for a part than for the whole."""
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount: expected 0 to 1, got {self.discount}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare place by place."""
        right = list(map(text.normalised, truth.value("order")))
        names, note = parsing.list_names(answer)
        if sorted(names) != sorted(right):
            return Verdict(0.0, answer=names, note=note or "not each name exactly once")
        share = sum(a == b for a, b in zip(names, right, strict=True)) / len(right)
        score = 1.0 if share == 1 else self.discount * share
        return Verdict(score, {"places": share}, answer=names)
