"""Measure how close a free text is to accepted texts, by word vectors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrl.answers import text
from vlmrl.answers.geometry import Array
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Truth, Verdict
from vlmrl.scoring.verifier import AnswerVerifier, Laws

MAX_WORDS = 2000
"""Longest answer that is compared."""


@dataclass(frozen=True)
class Bmas(AnswerVerifier):
    """Bidirectional max-average similarity of the words' vectors, in [0, 1]; the best truth counts.

    Half the mean, over words of the answer, of the best cosine with a word of the truth, plus half
    the mean the other way round, floored at 0. `vectors`: a `.npz` file with `words` [V] (text) and
    `vectors` [V, D], for example the policy's own embedding table; a word that it lacks is like
    itself only. `length_penalty`: times shorter / longer length in words, without which naming the
    whole vocabulary would make one half perfect.

    Used by: Mixed-R1 (open-ended answers): `length_penalty: false`.

    Refuses: an empty answer, over 2000 words. It does not see the order of words.

    Source: Mixed-R1, arXiv 2505.24164 (formula after BERTScore, arXiv 1904.09675, on static
    vectors).

    Raises:
        UserError: the file of vectors cannot be read.

    Example:
    >>> from vlmrl.scoring.verifier import judge
    >>> judge(Bmas(), "a red car", Truth(text=("the red car",))).score
    0.6666666666666666
    """

    needs: ClassVar[tuple[str, ...]] = ("text",)
    laws: ClassVar[Laws] = Laws(loose=({"length_penalty": False},))

    vectors: str | None = None
    """A `.npz` file with `words` [V] (text) and `vectors` [V, D], for example the policy's own embedding
    table, by `vlmrl export MODEL --embeddings FILE`; a word that it lacks is similar to itself only."""
    length_penalty: bool = True
    """Multiply by shorter / longer length in words, without which naming the whole vocabulary would
    make one half perfect."""

    def grade(self, answer: str, truth: Truth, completion: Completion) -> Verdict:
        """Compare with every accepted text."""
        assert truth.text is not None
        tokens = text.tokens(answer)
        if len(tokens) > MAX_WORDS:
            return Verdict(0.0, note=f"answer longer than {MAX_WORDS} words")
        scores = [self._similarity(tokens, text.tokens(accepted)) for accepted in truth.text]
        return Verdict(max(scores), answer=answer)

    def _similarity(self, left: list[str], right: list[str]) -> float:
        if not left or not right:
            return 0.0
        table = _table(self.vectors) if self.vectors else {}
        cosine = np.array([[_cosine(table, a, b) for b in right] for a in left])
        value = (float(cosine.max(1).mean()) + float(cosine.max(0).mean())) / 2
        if self.length_penalty:
            value *= min(len(left), len(right)) / max(len(left), len(right))
        return min(1.0, max(0.0, value))


def _cosine(table: dict[str, Array], a: str, b: str) -> float:
    if a == b:
        return 1.0
    return float(table[a] @ table[b]) if a in table and b in table else 0.0


@functools.lru_cache(maxsize=2)
def _table(path: str) -> dict[str, Array]:
    """Read unit vectors by word."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names, vectors = file["words"], file["vectors"].astype(np.float64)
    except (OSError, KeyError, ValueError) as error:
        raise UserError(
            f"{path}: no .npz file with words [V] and vectors [V, D]: {error}"
        ) from error
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return dict(zip(names.tolist(), vectors / np.maximum(norms, 1e-12), strict=True))
