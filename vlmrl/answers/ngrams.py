"""Overlap of texts in n-grams: ROUGE and BLEU."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

from vlmrl.answers.text import unicode_form

__all__ = ["bleu", "rouge", "rouge_longest", "tokens"]

_TOKEN = re.compile(r"[^\W_]+")
MAX_ORDER = 4


def tokens(text: str) -> list[str]:
    """Return the runs of letters and digits of a text in NFKC and lower case."""
    return _TOKEN.findall(unicode_form(text).casefold())


def rouge(found: Sequence[str], right: Sequence[str], order: int) -> float:
    """ROUGE-N: F-measure of the n-grams that two token lists share, in [0, 1]."""
    a, b = _grams(found, order), _grams(right, order)
    if order > 1 and found and list(found) == list(right):
        return 1.0  # a single word has no bigrams to share
    return _f_measure((a & b).total(), a.total(), b.total())


def rouge_longest(found: Sequence[str], right: Sequence[str]) -> float:
    """ROUGE-L: F-measure of the longest common subsequence of two token lists, in [0, 1]."""
    return _f_measure(LCSseq.similarity(found, right), len(found), len(right))


def bleu(found: Sequence[str], rights: Sequence[Sequence[str]]) -> float:
    """Sentence BLEU against all references at once, in [0, 1].

    Up to 4-grams, fewer for shorter texts; the k-th order without a match counts as 1 / (2^k total)
    (sacrebleu's `exp` smoothing and effective order); brevity penalty by the reference of the
    nearest length.
    """
    if not found:
        return 0.0
    logs, misses = [], 0
    for order in range(1, min(MAX_ORDER, len(found)) + 1):
        grams: Counter[tuple[str, ...]] = _grams(found, order)
        allowed: Counter[tuple[str, ...]] = Counter()
        for right in rights:
            allowed |= _grams(right, order)
        hits = (grams & allowed).total()
        if not hits:
            if order == 1:
                return 0.0
            misses += 1
        logs.append(math.log(hits / grams.total() if hits else 1 / (2**misses * grams.total())))
    nearest = min((len(right) for right in rights), key=lambda n: (abs(n - len(found)), n))
    brevity = min(1.0, math.exp(1 - nearest / len(found)))
    return min(1.0, brevity * math.exp(sum(logs) / len(logs)))


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _f_measure(shared: int, found: int, right: int) -> float:
    return 2 * shared / (found + right) if found and right else 0.0
