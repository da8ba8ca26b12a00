"""Compare texts: normalisation, words, edit distance and numbers written as words."""

from __future__ import annotations

import functools
import itertools
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from rapidfuzz.distance import LCSseq, Levenshtein

_ENDS = string.punctuation + "“”‘’。、"
_SIGN = re.compile(r"(~~|[-!]|[<>]=?|(?<!\.)\.)[\s($\[{]*$")
_MARK = re.compile(r"\s?(\+)")
_ASKING = re.compile(r"[?？؟][^\w?？؟]{0,9}$")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SPOKEN = re.compile(r"\w+(?:'\w+)*")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# fmt: off
_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# fmt: on
NUMBER_WORDS = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}


def collapsed(text: str) -> str:
    """Replace each run of white space with one space, and remove it at the ends."""
    return " ".join(text.split())


def unicode_form(text: str) -> str:
    """Return a text in Unicode NFKC with white space collapsed: one spelling for one look."""
    return collapsed(unicodedata.normalize("NFKC", text))


def normalised(text: str) -> str:
    """NFKC, case folded, white space collapsed, punctuation at the ends removed.

    A text of nothing but punctuation stays as it is; so does a sign that makes another number of the
    digits beside it (`-7`, `.5`, `<7`, `7+`).
    """
    folded = collapsed(unicode_form(text).casefold())
    bare = folded.strip(_ENDS + " ")
    if bare[:1].isdigit() and len(bare) < len(folded):
        before, _, after = folded.partition(bare)
        sign, mark = _SIGN.search(before[-9:]), _MARK.match(after)
        bare = f"{sign[1] if sign else ''}{bare}{mark[1] if mark else ''}"
    return collapsed(bare) or folded


def equal(answer: str, accepted: str) -> bool:
    """Return whether two texts are alike once `normalised`.

    An answer that ends in a question mark which the accepted text lacks leaves itself open: "7?".
    """
    asks = _ASKING.search(answer) and not _ASKING.search(accepted)
    return not asks and normalised(answer) == normalised(accepted)


@functools.lru_cache(maxsize=4096)
def label(name: str | None) -> str:
    """Return the name of a class, normalised; "" for none."""
    return normalised(name) if name else ""


def spoken(transcript: str) -> list[str]:
    """Return the words of a transcript: NFKC, lower case, no punctuation but apostrophes inside words."""
    return _SPOKEN.findall(unicode_form(transcript).casefold().replace("’", "'"))


def squad_tokens(text: str) -> list[str]:
    """Words after SQuAD's normalisation: lower case, no punctuation, no articles.

    A text of nothing but articles keeps them.

    Source: Rajpurkar et al. 2016, arXiv 1606.05250, official evaluation script.
    """
    plain = text.lower().translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split() or plain.split()


def edit_distance(a: str | list[str], b: str | list[str], limit: int | None = None) -> int:
    """Levenshtein distance of two texts, or of two lists of words.

    `limit`: a distance above it is reported as `limit + 1`, which bounds the time.
    """
    return Levenshtein.distance(a, b, score_cutoff=limit)


def closeness(found: str | list[str], right: str | list[str]) -> float:
    """1 - errors / length of the truth, floored at 0: 1 - CER of texts, 1 - WER of lists of words.

    An empty truth gives 0.
    """
    return (
        1 - min(1.0, edit_distance(found, right, limit=len(right)) / len(right)) if right else 0.0
    )


def word_number(words: list[str]) -> tuple[int, int] | None:
    """Return the number that the first words spell and its count of words; None for no number.

    Example: ["two", "hundred", "and", "five", "cells"] -> (205, 4)
    """
    total, part, used, last = 0, 0, 0, ""
    for index, word in enumerate(words):
        if word in NUMBER_WORDS:
            follows = last in ("", "hundred", "thousand") or (
                last in _TENS and 0 < NUMBER_WORDS[word] < 10
            )
            if not follows:
                break
            part += NUMBER_WORDS[word]
        elif word == "hundred" and 0 < part < 10 and last in _UNITS:
            part *= 100
        elif word == "thousand" and part and not total:
            total, part = 1000 * part, 0
        elif word == "and" and last in ("hundred", "thousand"):
            continue
        else:
            break
        last, used = word, index + 1
    return (total + part, used) if used else None


# --------------------------------------------------------------------------------------------------
# Overlap of texts in n-grams: ROUGE and BLEU.


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


# --------------------------------------------------------------------------------------------------
# How much of a text says something new.


MAX_WORDS = 10_000
"""Words that are looked at; a longer text scores by its first ones."""
MAX_LETTERS = 32
"""Letters of a word; a longer run without a space is split at commas and tags, or else into its letters."""
_NO_SPACES = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""A letter of a script that puts no spaces between words, each of which counts as one."""
_PIECE = re.compile(r"[^,;<>]*[,;<>]+|[^,;<>]+")


def distinct_share(written: str, size: int) -> float:
    """Return the share of a text's runs of `size` words that are distinct; 1 if it is shorter than one."""
    words = [*itertools.islice(_plain_words(written), MAX_WORDS)]
    runs = [tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1))]
    return len(set(runs)) / len(runs)


def _plain_words(written: str) -> Iterator[str]:
    for word in written.lower().split(maxsplit=MAX_WORDS)[:MAX_WORDS]:
        if len(word) <= MAX_LETTERS and not _NO_SPACES.search(word):
            yield word
            continue
        for piece in _PIECE.findall(word):
            whole = len(piece) <= MAX_LETTERS and not _NO_SPACES.search(piece)
            yield from (piece,) if whole else piece
