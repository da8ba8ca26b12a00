"""Measure how close a free text is to accepted texts, by n-grams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmrl.answers import text
from vlmrl.answers import text as words
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws


@dataclass(frozen=True)
class Text(AnswerVerifier):
    """Closeness of the answer to the accepted texts, in [0, 1].

    `measure`: `rouge1`, `rouge2`, `rougeL` F-measures; `rouge` the mean of these three; `token_f1`
    of the words without articles and punctuation (SQuAD); the best accepted text counts; `bleu`
    BLEU-4 with smoothing and brevity penalty against all accepted texts at once.

    Published sets: Video-R1, Visionary-R1 free-form: `measure: rouge`; BLEUBERI, MT-R1-Zero:
    `measure: bleu`; Visual-ARFT search: `measure: token_f1`.

    Refuses: an empty answer. Additional words lower every measure.

    Source: ROUGE: Lin 2004; BLEU: Papineni et al. 2002, smoothed as sacrebleu's "exp"; SQuAD, arXiv
    1606.05250.
    Differs: words are runs of letters and digits in any script, not stemmed.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Text(measure="rouge1"), "a red car", Truth(text=("the red car",))).score
    0.6666666666666666
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(
        options=tuple(
            {"measure": name}
            for name in ("rouge", "rouge1", "rouge2", "rougeL", "bleu", "token_f1")
        ),
    )

    measure: Literal["rouge", "rouge1", "rouge2", "rougeL", "bleu", "token_f1"] = "rouge"
    """`rouge1`, `rouge2`, `rougeL`: F-measures; `rouge`: the mean of these three; `token_f1`: F1 of the
    words without articles and punctuation (SQuAD); `bleu`: BLEU-4 with smoothing and brevity penalty
    against all accepted texts at once; elsewhere the best accepted text counts."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted text."""
        assert truth.text is not None
        cut = words.squad_tokens if self.measure == "token_f1" else text.tokens
        tokens, rights = cut(answer), [cut(accepted) for accepted in truth.text]
        if self.measure == "bleu":
            return Verdict(text.bleu(tokens, rights), answer=answer)
        measure = _MEASURES[self.measure]
        return Verdict(max(measure(tokens, right) for right in rights), answer=answer)


def _mean_rouge(tokens: list[str], right: list[str]) -> float:
    return (
        text.rouge(tokens, right, 1)
        + text.rouge(tokens, right, 2)
        + text.rouge_longest(tokens, right)
    ) / 3


_MEASURES: dict[str, Callable[[list[str], list[str]], float]] = {
    "rouge": _mean_rouge,
    "rouge1": lambda found, right: text.rouge(found, right, 1),
    "rouge2": lambda found, right: text.rouge(found, right, 2),
    "rougeL": text.rouge_longest,
    "token_f1": lambda found, right: text.rouge(found, right, 1),
}
