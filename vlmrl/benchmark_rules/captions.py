"""Captions: the words that their metrics compare, and ROUGE-L over several references."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq

_ABBREVIATIONS = "|".join(
    """adj adm ala? alex apr ariz assn assoc asst aug ave bldg blvd brig bros calif capt cf cie cmdr co
    col colo conn corp cpl ct dec dept det dr e[.]g ens esq est etc ext feb fla fri ft ga gen gov hon
    i[.]e inc ind intl jan jr jul jun kan kans ky lt ltd maj mar md messrs mich minn mlle mme mo mon mont
    mrs? msgr ms mt natl neb nev nov oct okla penn pfc ph[.]d plc pres prof pvt rd rep reps rev rt sen
    sept? sfc sgt sq sr st tel tenn thu thurs tues? univ va vs vt wed wis wm wyo""".split()
)
_CAPITAL_ONLY = (
    "(?-i:A(?:rk|z|RK|Z)|Del|DEL|Ill|ILL|L[aA]|Mass|MASS|Miss|MISS|Ore|ORE|P[aA]|Tex|TEX|Wash|WASH)"
)
_PART = r"[^\W_]+(?:_[^\W_]+)*"
_TOKEN = re.compile(
    rf"""
    (?:https?://|www[.])[^\s"<>]*[^\s"<>.,;:!?)\]}}'’]
    | </?[a-z][^<>\n]*>
    | (?:{_ABBREVIATIONS}|{_CAPITAL_ONLY}|(?:[a-z][.])+[a-z]|[a-z])[.](?!\w)
    | [^\W\d_]+(?:[.!?][^\W\d_]+)+
    | \d+(?:/\d+)+(?!\w) | (?<![^\W_])[-+]?(?:\d*[.]\d+|\d+[.,:]\d+)(?:[.,:]\d+)*
    | [-+]\d+(?!\w) | [.]\d+
    | '\d\ds?(?!\w) | 'n'(?!\w)
    | n['’]t(?!\w) | ['’](?:s|m|d|ll|ve|re)(?!\w)
    | y['’](?=all\b) | ma['’]am(?!\w) | (?-i:[A-Z]+&[A-Z]+)
    | (?:[dol]['’](?!s\b))?{_PART}(?:[-/]{_PART})*
    | [#](?!\d){_PART} | @{_PART} | [!?]+ | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DENIED = re.compile(r"(?<=\w)(?=n['’]t(?!\w))", re.IGNORECASE)
"""Where a word ends that a denial is written to."""
_WRITTEN = {
    **dict(zip("()[]{}", ("-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-"), strict=True)),
    **{"£": "#", "€": "$", "½": "1/2", "¼": "1/4", "¾": "3/4"},
    **{"cannot": "can not", "gonna": "gon na", "gotta": "got ta", "gimme": "gim me"},
    **{"lemme": "lem me", "wanna": "wan na"},
}
_BETA = 1.2
_DROPPED = frozenset("\"'`“”‘’.?!,:;-–—…")
"""Tokens that pycocoevalcap drops; it drops brackets by names in capital letters, so these stay."""


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption as lmms-eval compares them: Penn Treebank tokens, no punctuation.

    pycocoevalcap has them from Stanford's PTBTokenizer 3.4.1, which needs Java, in lower case. These
    words are the same for all but 41 of 70,606 captions and questions (ActivityNet Captions, Charades,
    QVHighlights, NExT-QA, CharXiv); those hold formulas, addresses, faces made of marks or telephone
    numbers.
    """
    words: list[str] = []
    for token in _TOKEN.findall(_DENIED.sub(" ", caption)):
        word = token.lower().replace("’", "'")
        if word not in _DROPPED:
            words += _WRITTEN.get(word, word).split()
    return words


def rouge_longest(caption: str, references: Sequence[str]) -> float:
    """Return ROUGE-L as pycocoevalcap has it (rouge/rouge.py), in [0, 1]; words are what blanks part.

    The best precision and the best recall of the longest common subsequence count, be they of two
    references; recall weighs 1.2 squared as much. Two blanks have an empty word between them.

    Source: Lin 2004; Chen et al. 2015, arXiv 1504.00325.
    """
    words, rights = caption.split(" "), [reference.split(" ") for reference in references]
    common = [LCSseq.similarity(words, right) for right in rights]
    precision = max(common) / len(words)
    recall = max(hits / len(right) for hits, right in zip(common, rights, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)
