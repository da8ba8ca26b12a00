"""Measure how early a rollout's searches found the relevant pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.answers import text
from vlmrl.schema import AnswerForm, Completion, Sample, Verdict
from vlmrl.scoring.verifier import Laws, Verifier


@dataclass(frozen=True)
class RetrievalNdcg(Verifier):
    """Normalised discounted cumulative gain of the pages that searches found, in [0, 1].

    DCG is the sum of 1 / log2(k + 1) over the places k at which a relevant name (truth `labels`) was
    found for the first time; the ideal order has all of them first. Names are those that tools stated
    for what they returned (`Call.found`), in the order of the calls that were run.

    Used by: VRAG-RL (weight 0.2, gated by `ocr` with `measure: anls`), `recipes/vrag`.

    Refuses: a page found again, which takes a place and is not paid; names written in the answer.

    Source: VRAG-RL, arXiv 2505.22019, and the reward of its repository; Järvelin and Kekäläinen 2002.

    Differs: VRAG-RL's code pays a page again each time that it is found, so that its score may exceed 1.

    Example:
    >>> from vlmrl.schema import Truth
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(RetrievalNdcg(), "deck_3", Truth(labels=("deck_3",))).score
    0.0
    """

    needs: ClassVar[tuple[str, ...]] = ("labels",)
    laws: ClassVar[Laws] = Laws(of_turns=True)

    def answer_form(self) -> AnswerForm:
        """Return no form: it does not read the answer."""
        return AnswerForm()

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Discount each relevant page by its place."""
        right = {text.label(name) for name in sample.truth.labels or ()}
        if not right:
            return Verdict.not_applicable("the truth names no relevant page")
        pages = [text.label(name) for call in completion.calls for name in call.found]
        places = [pages.index(name) + 1 for name in right if name in pages]
        ideal = range(1, len(right) + 1)
        score = math.fsum(map(_gain, places)) / math.fsum(map(_gain, ideal))
        return Verdict(min(1.0, score), {"pages": len(pages)}, answer=pages)


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)
