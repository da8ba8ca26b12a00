"""How well a ranking puts what is relevant first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier


@dataclass(frozen=True)
class Ndcg(AnswerVerifier):
    """Normalised discounted cumulative gain of the names in the answer, in order, in [0, 1].

    DCG = sum of 1 / log2(k + 1) over the places k at which a relevant name (truth `labels`) stands
    for the first time; the ideal order has all of them first. `top`: only so many places count.

    A tool loop hands its retrieval log over as the answer, one page a line.

    Published sets: VRAG-RL: the defaults, with weight 0.2 beside a judge and `ocr` with `measure:
    anls`, all behind a gate on the latter.

    Refuses: a name said twice counts once, at its first place.

    Source: VRAG-RL, arXiv 2505.22019; Järvelin and Kekäläinen 2002.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> round(judge(Ndcg(), "p7, p2", Truth(labels=("p2",))).score, 4)
    0.6309
    """

    needs: ClassVar[tuple[str, ...]] = ("labels",)

    top: int | None = None

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Discount by place."""
        right = {text.label(name) for name in truth.labels or ()}
        if not right:
            raise ValueError("no relevant labels: declare the truth none if there are none")
        ranked, note = parsing.names(answer)
        places = [k for k, name in enumerate(ranked[: self.top], start=1) if name in right]
        ideal = range(1, min(len(right), self.top or len(right)) + 1)
        score = math.fsum(map(_gain, places)) / math.fsum(map(_gain, ideal))
        return Verdict(min(1.0, score), answer=ranked, note=note)


def _gain(place: int) -> float:
    return 1 / math.log2(place + 1)
