"""Whether a statement claims its value: it may also deny it, leave it open, or change it.

A reader puts `VALUE` in the place of what it has read; the rest of the statement must not take it back.
Words are those of English and, the plainest, of seven more languages. Time is linear in the length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

VALUE = "\ue000"
"""Stands for the value in a statement."""

_SENTENCES = re.compile(r"(?<=[.!?;。！？；])\s+|\n")
_WHY = r"\b(?:because|since|as|although|though|while|which)\b|因为"
_REASON = re.compile(rf"[,;:(（，：]|{_WHY}")
"""After it a sentence says why, no longer what."""
_BECAUSE = re.compile(_WHY)


def _words(*lists: str) -> str:
    return (
        rf"\b(?:{'|'.join(word.replace('_', ' ') for words in lists for word in words.split())})\b"
    )


_DENIAL = re.compile(
    _words(
        "not never neither nor none cannot cant isnt wasnt dont doesnt hardly scarcely wrong false",
        "incorrect untrue mistaken unlike except excluding anything_but all_but other_than",
        "rather_than instead_of far_from opposite_of reject(?:ed|s)? rule[sd]?_out disagree",
        "nicht kein(?:e[rsnm]?)? nie(?:mals)? falsch weder außer nunca tampoco falso incorrect[oa]",
        "excepto pas jamais faux sauf не нет неверно кроме ليس ليست لا غير خطأ",
    )
    + r"|n['’]t\b|\b(?:no|ni)\s{1,3}(?:\w+\s{1,3})?"
    + VALUE
    + r"|不(?:是|对|会|为|等|可能|正确|选|应|行)|并?非(?!常)|没有?|错|除了?|ではな|じゃな|ありません|違"
    + r"|~~|<(?:s|del|strike)\b|\\(?:x?cancel|sout|not|neg)\b|[≠≢¬]|!=?\s?"
    + VALUE,
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\W{0,9}(?:no|nope|nein|nah|not|never|wrong|false|incorrect)\b", re.IGNORECASE
)
_TAKEN_BACK = re.compile(
    r"\b(?:that|this|it|which)(?:['’]s|\s{1,3}(?:is|was|would\s{1,3}be))\s{1,3}"
    r"(?:\w+\s{1,3})?(?:wrong|false|incorrect|untrue)\b",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    _words(
        "maybe perhaps possibly probably presumably supposedly might could may_be either unsure",
        "uncertain unclear unknown undecided guess(?:ing)? doubtful in_doubt i_doubt depends",
        "vielleicht möglicherweise vermutlich oder quizás? tal_vez posiblemente peut-être ou",
        "или возможно أو ربما قد",
    )
    + r"|或|可能|也许|吗|または|かもしれ|たぶん|[?？؟]",
    re.IGNORECASE,
)
_OR_BEFORE = re.compile(r"\bor\W{1,4}(?:\w+\W{1,4}){0,2}$", re.IGNORECASE)
_OR_AFTER = re.compile(r"\W{0,4}or\b|[^\w,;:(]{1,4}(?:\w+\s{1,4}){1,4}?or\b", re.IGNORECASE)


def doubt(statement: str) -> str:
    """Return why a statement does not claim its value, empty where it does.

    Example: "not VALUE" -> "denies its value"; "VALUE, maybe" -> "leaves its value open"
    """
    if VALUE not in statement:
        return ""
    if _TAKEN_BACK.search(statement.rpartition(VALUE)[2]):
        return "denies its value"
    for before, after in _around(statement):
        clause = _REASON.split(after, maxsplit=1)[0]
        if _DENIAL.search(before + VALUE) or _DENIAL.search(clause) or _DENIED.match(after):
            return "denies its value"
    return hedge(statement)


def hedge(statement: str) -> str:
    """Return why a statement leaves its value open, empty where it does not; it may deny it."""
    for before, after in _around(statement):
        claim = _BECAUSE.split(after, maxsplit=1)[0]
        words = _HEDGE.search(before) or _HEDGE.search(after)
        if words or _OR_BEFORE.search(before) or _OR_AFTER.match(claim):
            return "leaves its value open"
    return ""


def _around(statement: str) -> Iterator[tuple[str, str]]:
    """Yield what is before and after the last value of each sentence that has one."""
    for sentence in _SENTENCES.split(statement):
        before, value, after = sentence.rpartition(VALUE)
        if value:
            yield before, after


def takes_back(words: str) -> bool:
    """Return whether words say nothing but that something is wrong or unsure, such as "perhaps"."""
    return any(pattern.fullmatch(words) for pattern in (_DENIAL, _HEDGE, _DENIED))


# --------------------------------------------------------------------------------------------------
# Words and signs that make another number of the one that is stated.


_PARTS = (
    r"(?:hundred|thousand|million|billion|trillion|lakh|crore|dozen|hal[fv]e?|third|quarter|fourth"
    r"|fifth|sixth|seventh|eighth|ninth|tenth|ten|hundredth|thousandth)s?"
)
_BETWEEN = r"[-+*/^×÷·⋅∙%,;|&–—−~\\]|\b(?:x|times|plus|minus|over|by|of|to|or|and|out|point|mod)\b"
_CHANGED = re.compile(
    rf"""
      V(?:\s?(?-i:k|mn|bn|mio|mrd)\b|(?-i:[KMB])\b|[-\s]{{0,3}}{_PARTS}\b|(?-i:[ei])\b|x[0-9a-f])
    | V\s{{1,3}}and\s{{1,3}}(?:an?\s{{1,3}})?{_PARTS}\b
    | V[-\s]{{0,3}}(?:squared|cubed|factorial|fold|ish|odd|something|more|less|fewer|plus|minus|times
        |point|over|pi|π)\b
    | V\s?[\^√∞‰‱±+\u0300-\u036f\u20d0-\u20ff]
    | V\s{{0,3}}(?:(?:{_BETWEEN})\s{{0,3}}){{0,3}}V | V:V
    | \b(?:minus|negative|plus|times|twice|double|triple|{_PARTS}|root|square|cube|power|log|ln|sqrt
        |opposite|inverse|reciprocal|factorial|almost|nearly|below|under|over|above|beyond
        |exceed(?:s|ing)?|least|most|than|within|near|close\s{{1,3}}to|up\s{{1,3}}to|mod)
        (?:\s{{1,3}}of)?\W{{0,3}}V
    | (?:(?:^|[\s=(])[<>]=?|[≤≥⩽⩾≦≧≪≫√∛∜±∓]|\\(?:leq?|geq?|lt|gt|neq?|d?frac|sqrt|pm|mp|log|ln)\b|&[lg]t;)
        [\s({{$]{{0,3}}V
    | (?:^|[=:(\[{{$*+])\s{{0,3}}[-–—−‐‑‒﹣－][-\s($\[{{*]{{0,3}}V
    """.replace("V", VALUE),
    re.VERBOSE | re.IGNORECASE,
)
_OTHER_DIGITS = re.compile(r"(?<![A-Za-z_0-9.,])[0-9](?![0-9]{0,20}(?:st|nd|rd|th)\b)")
_POWERS = re.compile(r"(?<=[A-Za-zµμΩ])⁻?[¹²³]|一共")
"""Powers of a unit, and the Chinese for "in total"."""


def changes(statement: str) -> str:
    """Return why a statement states another number than `VALUE`, empty where it states that one.

    Example: "VALUE million", "minus VALUE", "VALUE + VALUE" -> "changes its number"
    """
    if _CHANGED.search(statement):
        return "changes its number"
    rest = _POWERS.sub("", statement)
    other = (not c.isascii() and unicodedata.numeric(c, None) is not None for c in rest)
    if _OTHER_DIGITS.search(rest) or any(other):
        return "has another number that is not read"
    return ""
