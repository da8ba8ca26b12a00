"""Measure how well a ranking puts the relevant names first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import parsing, text
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Ndcg(AnswerVerifier):
    """Normalised discounted cumulative gain of the names in the answer, in order, in [0, 1].

    DCG is the sum of 1 / log2(k + 1) over the places k at which a relevant name (truth `labels`)
    occurs for the first time; the ideal order has all of them first.

    A tool loop passes its retrieval log as the answer, one page a line.

    Published sets: VRAG-RL: `top: all`, with weight 0.2 next to a judge and `ocr` with `measure:
    anls`, all behind a gate on the latter.

    Refuses: naming the whole vocabulary: by default only as many places count as there are relevant
    names (with `top: all` it is paid); two lists; a name said twice counts once, at its first place.

    Source: VRAG-RL, arXiv 2505.22019; Järvelin and Kekäläinen 2002.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> round(judge(Ndcg(top=10), "p7, p2", Truth(labels=("p2",))).score, 4)
    0.6309
    """

    needs: ClassVar[tuple[str, ...]] = ("labels",)
    laws: ClassVar[Laws] = Laws(junk="zzzz, ANSWER", options=({}, {"top": 3}))

    top: int | Literal["relevant", "all"] = "relevant"
    """How many places count: a number, as many as there are relevant names, or all."""

    def __post_init__(self) -> None:
        """Refuse a number of places that is not positive."""
        if isinstance(self.top, int) and self.top < 1:
            raise ValueError(f"expected top of at least 1, got {self.top}")

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Discount each relevant name by its place."""
        right = {text.label(name) for name in truth.labels or ()}
        if not right:
            raise ValueError("no relevant labels: declare the truth none if there are none")
        ranked, note = parsing.read_names(answer)
        top = self.top if isinstance(self.top, int) else len(right)
        counted = ranked if self.top == "all" else ranked[:top]
        places = [k for k, name in enumerate(counted, start=1) if name in right]
        ideal = range(1, min(len(right), top) + 1)
        score = math.fsum(map(_gain, places)) / math.fsum(map(_gain, ideal))
        return Verdict(min(1.0, score), answer=ranked, note=note)


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)
