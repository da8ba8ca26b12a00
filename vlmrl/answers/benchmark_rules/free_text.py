"""Free text: ANLS, relaxed accuracy, VQA accuracy, substrings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vlmrl.answers import text
from vlmrl.answers.benchmark_rules import Harness

__all__ = [
    "anls",
    "name_two_way",
    "ocrbench",
    "relaxed",
    "strip_punctuation",
    "substring",
    "vqa_accuracy",
]


def anls(answer: str, accepted: tuple[str, ...], cut: float = 0.5) -> float:
    """Return the ANLS of DocVQA and InfoVQA, in [0, 1], one rule in lmms-eval and VLMEvalKit.

    1 - distance / longer length, the best over the accepted texts, 0 below `cut`. The distance is
    between the texts in lower case with white space collapsed; the lengths are those of the raw
    texts (lmms-eval api/metrics.py, VLMEvalKit dataset/utils/vqa_eval.py).

    Differs from strict: white space raises the score of a wrong answer, no Unicode normalisation;
    an empty answer can be right.
    """
    best = 0.0
    for right in accepted:
        a, b = text.collapsed(answer.lower()), text.collapsed(right.lower())
        raw = max(len(answer.upper()), len(right.upper()))
        best = max(best, 1 - text.edit_distance(a, b) / raw if raw else 1.0)
    return best if best >= cut else 0.0


def relaxed(answer: str, right: str, harness: Harness, tolerance: float = 0.05) -> bool:
    """Return whether an answer is right by the relaxed accuracy of ChartQA.

    Two numbers (a trailing % divides by 100) may differ by `tolerance` of the truth; everything
    else must be equal but for case. vlmevalkit strips the answer first, lmms_eval does not.

    Source: ChartQA, arXiv 2203.10244, section 5.1; google-research/pix2struct `metrics.py`. Differs
    from strict: years are numbers, so that 2010 passes for 2019; `12%` and `12` differ, and so do
    `1,200` and `1200`, `$5` and `5`.
    """
    if harness == "vlmevalkit":
        answer = answer.strip()
    stated, wanted = _as_float(answer), _as_float(right)
    if stated is not None and wanted:
        return abs(stated - wanted) / abs(wanted) <= tolerance
    return answer.lower() == right.lower()


def _as_float(stated: str) -> float | None:
    try:
        return float(stated.rstrip("%")) / 100 if stated.endswith("%") else float(stated)
    except ValueError:
        return None


def substring(answer: str, accepted: Sequence[str]) -> bool:
    """Return whether an accepted text occurs in the answer: VLMEvalKit on CountBenchQA.

    Differs from strict: `1` is in `10`, and a list of all digits is always right.
    """
    return any(right in answer for right in accepted)


def ocrbench(answer: str, accepted: Sequence[str], harness: Harness, formula: bool = False) -> bool:
    """Return whether an accepted text occurs in the answer, as OCRBench v1 reads both.

    Case and line ends do not count; `formula` (its sub-set HME100k): blanks do not count, case does.
    lmms_eval (tasks/ocrbench/utils.py) also reads full-width characters as ASCII; vlmevalkit
    (dataset/image_vqa.py) does not.

    Differs from strict: an answer that lists many texts is right.
    """

    def normalize(said: str) -> str:
        if formula:
            return said.strip().replace("\n", " ").replace(" ", "")
        if harness == "lmms_eval":
            said = said.translate(_FULL_WIDTH)
        return said.lower().strip().replace("\n", " ")

    answer = answer.strip() if harness == "lmms_eval" else answer
    return any(normalize(right) in normalize(answer) for right in accepted)


def name_two_way(answer: str, right: str) -> bool:
    """Return whether a name is in the answer or the answer in the name: Visual-RFT on classes.

    Blanks, underscores and case do not count (classification/Qwen2_VL_classification_infere.py); an
    answer of several lines is none. Differs from strict: a letter of the name is right, and so is an
    empty answer.
    """
    if "\n" in answer:
        return False
    name, said = (one.replace(" ", "").replace("_", "").lower() for one in (right, answer))
    return name in said or said in name


def vqa_accuracy(answer: str, accepted: Sequence[str], harness: Harness) -> float:
    """Return the VQA accuracy of TextVQA, in [0, 1]: min(1, matches / 3) over ten annotators.

    For each annotator the answers of the others are compared, and the mean is taken. Both texts
    are normalised: lower case, no articles, most punctuation removed, number words up to ten as
    digits, apostrophes of contractions put back (lmms-eval tasks/_task_utils/vqa_eval_metric.py,
    VLMEvalKit dataset/utils/vqa_eval.py; they treat `'s`, commas and full stops differently).

    Source: Antol et al. 2015, VQA, arXiv 1505.00468, and the EvalAI server's processing.
    """
    said = _vqa_normalize(answer, harness)
    others = [_vqa_normalize(right, harness) for right in accepted]
    total = others.count(said)
    scores = [min(1.0, (total - (right == said)) / 3) for right in others]
    return sum(scores) / len(scores)


def _vqa_normalize(said: str, harness: Harness) -> str:
    if harness == "lmms_eval":
        said = said.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    said = said.replace("\n", " ").replace("\t", " ").strip()
    said = strip_punctuation(said, harness)
    words = [_DIGITS.get(word, word) for word in said.lower().split()]
    words = [word for word in words if word not in ("a", "an", "the")]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words)


def strip_punctuation(said: str, harness: Harness) -> str:
    """Remove or blank punctuation as the VQA evaluation does.

    A mark is removed where some mark of its kind has a blank next to it, or where the text has a
    comma between digits; else it becomes a blank. A full stop is removed unless a digit follows
    (vlmevalkit: or precedes); at most 32 are, since both pass the flag re.UNICODE as the count.
    """
    joined = _COMMA[harness].search(said) is not None
    found = said
    for mark in ';/[]"{}()=+\\_-><@`,?!':
        bare = joined or f"{mark} " in said or f" {mark}" in said
        found = found.replace(mark, "" if bare else " ")
    return _STOP[harness].sub("", found, count=int(re.UNICODE))


_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " "}
_COMMA = {"lmms_eval": re.compile(r"(?<=\d),+(?=\d)"), "vlmevalkit": re.compile(r"\d,\d")}
_STOP = {"lmms_eval": re.compile(r"\.(?!\d)"), "vlmevalkit": re.compile(r"(?<!\d)\.(?!\d)")}
_DIGITS = {"none": "0"} | {
    word: str(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
}
_APOSTROPHES = """
'twas ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's
how'd how'll how's isn't it'd it'll ma'am might've mightn't must've mustn't needn't not've o'clock
oughtn't shan't should've shouldn't somebody'll somebody's someone'd someone'll someone's
something'd something'll that's there'd there're there's they'd they'll they're they've wasn't
we've weren't what'll what're what's what've when's where'd where's where've who'd who'll who's
who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've couldn't've
hadn't've he'd've it'd've mightn't've 'ow's'at she'd've shouldn't've somebody'd've someone'd've
something'd've there'd've they'd've we'd've who'd've wouldn't've y'all'll y'all'd've you'd've
"""
_CONTRACTIONS = {"somebody'd": "somebodyd"} | {
    whole[:at] + whole[at + 1 :]: whole
    for whole in _APOSTROPHES.split()
    for at, letter in enumerate(whole)
    if letter == "'"
}
"""A contraction that lacks one apostrophe -> the whole."""
