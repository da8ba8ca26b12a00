"""Free text: ANLS, relaxed accuracy, VQA accuracy, substrings."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from vlmrl.answers import text
from vlmrl.benchmark_rules import Harness

# --------------------------------------------------------------------------------------------------
# Words: MMAU's match of tokens, TempCompass, MMVU, VLMsAreBlind, and HumanOmniV2's lists of letters.


_POWERS = str.maketrans({power: f"^{at}" for at, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})


def mmau_match(answer: str, right: str, options: Sequence[str]) -> bool:
    """Return whether an answer has all words of the right option and none that only others have.

    Source: MMAU evaluation.py (string_match).

    Differs from strict: "no idea, a dog perhaps" is right where "a dog" is.
    """
    stated, wanted = _words(answer), _words(right)
    others = {word for option in options if _words(option) != wanted for word in _words(option)}
    return bool(stated) and wanted <= stated and stated.isdisjoint(others - wanted)


def r1_aqa_answer(text: str) -> str:
    """Return what stands in the first answer tag on one line, else the whole (R1-AQA src/test_mmau.py)."""
    match = re.search("<answer>(.*?)</answer>", text)
    return (match[1] if match else text).strip()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b\w+\b", text.lower()))


def tempcompass_choice(answer: str, right: str) -> bool | None:
    """Return whether `A`, `A.` or `A)` at the start, or the whole text, is right; None: a judge is asked.

    `right` is the option with its letter. Source: lmms-eval tasks/tempcompass/utils.py.
    """
    if answer == right:
        return True
    if answer in ("A", "B", "C", "D"):
        return answer == right[0]
    if answer[:2] in ("A.", "B.", "C.", "D.", "A)", "B)", "C)", "D)"):
        return answer[0] == right[0]
    return None


def tempcompass_yes_no(answer: str, right: str) -> bool | None:
    """Return whether the word at the start is right; None: it is neither, and a judge is asked.

    Source: lmms-eval tasks/tempcompass/utils.py.

    Differs from strict: "nothing moves" says no.
    """
    lower = answer.lower()
    word = "yes" if lower.startswith("yes") else "no" if lower.startswith("no") else None
    return None if word is None else word == right


def tempcompass_matching(answer: str, right: str, options: Sequence[str]) -> bool | None:
    """Return whether a sentence, its name or its letter is right; None: a judge is asked.

    `options` are lines such as `Sentence A: A dog runs.`, `right` is one of them. Source: lmms-eval
    tasks/tempcompass/utils.py (eval_rule).
    """
    parts = [option.split(": ") for option in options]
    names = [part[0] for part in parts]
    bare = [_without_kind(name) for name in names]
    reading = answer if answer in options else None
    for part in parts:
        tail = answer.split(") ")[1] if ") " in answer else None
        if part[1] in (answer, tail):
            reading = part[1]
    for name in (*names, *bare):
        if name in (answer, answer.replace(".", "")):
            reading = name
    if reading is None:
        return None
    wanted = right.split(": ")
    return reading in (right, right.split(":")[0], wanted[1], *wanted[0].split()[1:2])


def _without_kind(name: str) -> str:
    for kind in ("Sentence ", "Option ", "Caption "):
        name = name.replace(kind, "")
    return name


def mmvu_choice(answer: str, right: str, options: Mapping[str, str]) -> bool:
    """Return whether a choice is right as lmms-eval judges MMVU (tasks/mmvu/utils.py).

    The right letter occurs as a word, in either case; or the right option's text occurs; or the letter
    occurs anywhere with one of the text's words of more than two letters.

    Differs from strict: "A B C D E" is right.
    """
    reply = answer.strip()
    if re.search(rf"\b{re.escape(right)}\b", reply, re.IGNORECASE):
        return True
    if right not in options:
        return False
    wanted, lower = options[right].strip().lower(), reply.lower()
    if wanted in lower:
        return True
    words = [word.strip(string.punctuation) for word in wanted.split()]
    return right.upper() in reply.upper() and any(word in lower for word in words if len(word) > 2)


def mmvu_open(answer: str, right: str) -> bool:
    """Return whether an open answer is right by lmms-eval's rule for MMVU, before it asks a judge.

    One contains the other; the first numbers are equal to 0.01; all words of a right answer of two to
    five occur; or the bounds `O(...)` are equal.

    Differs from strict: any single letter of the right answer is right, and so is an empty answer.
    """
    stated, wanted = (_as_plain_text(text) for text in (answer, right))
    if wanted in stated or stated in wanted:
        return True
    numbers = [re.findall(r"\d+\.?\d*", text) for text in (stated, wanted)]
    if all(numbers) and abs(float(numbers[1][0]) - float(numbers[0][0])) < 0.01:
        return True
    words = [
        [w for w in (token.strip(string.punctuation) for token in t.split()) if w]
        for t in (stated, wanted)
    ]
    if 2 <= len(words[1]) <= 5 and all(word in words[0] for word in words[1] if len(word) > 2):
        return True
    bounds = [re.search(r"O\s*\([^)]+\)", text, re.IGNORECASE) for text in (stated, wanted)]
    return all(bounds) and len({bound[0].lower() for bound in bounds if bound}) == 1


def _as_plain_text(text: str) -> str:
    return " ".join(text.strip().lower().translate(_POWERS).split())


def blind_reading(answer: str, task: str) -> str | None:
    """Read an answer as lmms-eval does for VLMsAreBlind (tasks/vlmsareblind/utils.py), in lower case.

    Yes or no alone; the first number; the first letter; or a grid's rows and columns as `{3}{4}`,
    `(3, 4)` or `rows={3} columns={4}`, which is `3,4`.

    Differs from strict: the first letter of "The letter is {R}" is t, and "2 of 3" says 2.
    """
    reply, task = answer.strip().lower(), task.lower()
    if task == "touching circles":
        return reply if reply in ("yes", "no") else None
    if task.startswith("counting grid"):
        matches = (re.search(pattern, reply) for pattern in _GRIDS)
        match = next((match for match in matches if match), None)
        return f"{match[1]},{match[2]}" if match else None
    pattern = r"[a-z]" if task == "circled letter" else r"\d+" if task in _COUNTED else "(?!)"
    first = re.search(pattern, reply)
    return first[0] if first else None


def omni_letters_f1(answer: str, right: str) -> float:
    """Return the F1 of two lists of letters split at commas, blanks kept: HumanOmniV2 on IntentBench.

    Source: eval/eval_humanomniv2.py (emer_ov_mc).
    """
    stated, wanted = answer.split(","), right.split(",")
    hits = len(set(stated) & set(wanted))
    precision, recall = hits / len(stated), hits / len(wanted)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def omni_judged(answer: str, right: str) -> bool:
    """Return whether both contain yes, or both contain no: HumanOmniV2 on IntentBench.

    Differs from strict: "nothing" says no, and "yes and no" is always right.
    """
    stated, wanted = answer.lower(), right.lower()
    return ("yes" in wanted and "yes" in stated) or ("no" in wanted and "no" in stated)


_COUNTED = (
    "line plot intersections",
    "subway connections",
    "olympic counting - circles",
    "olympic counting - pentagons",
    "nested squares",
)
_GRIDS = (
    r"\{(\d+)\}\s*\{(\d+)\}",
    r"\((\d+)\s*,\s*(\d+)\)",
    r"rows=\{(\d+)\}\scolumns=\{(\d+)\}",
)


# --------------------------------------------------------------------------------------------------
# Open answers: MMMU's questions without options, MathVista, SLAKE, and R1-V's counts.


def mmmu_open(answer: str, right: str | Sequence[str], keys: Sequence[str] = ()) -> bool:
    """Return whether an open answer is right as lmms-eval 0.7.3 judges MMMU (tasks/mmmu/utils.py).

    Tails after "so", "is", "thus" and the like, and all their numbers, rounded to two decimals, are
    candidates; a right text may occur anywhere in one of them. `keys` are more words before a tail.

    Differs from strict: listing several answers pays.
    """
    wanted = [
        value
        for accepted in ([right] if isinstance(right, str) else right)
        for value in _plain(accepted)
    ]
    tails = _tails(answer, (*_KEYS, *keys))
    candidates = [*tails, *(number for tail in tails for number in _numbers(tail))]
    for reading in (plain for candidate in candidates for plain in _plain(candidate)):
        if isinstance(reading, float) and reading in wanted:
            return True
        if isinstance(reading, str) and any(
            isinstance(value, str) and value in reading for value in wanted
        ):
            return True
    return False


def video_mmmu_open(answer: str, right: str) -> bool:
    """Return whether an open answer is right as lmms-eval judges Video-MMMU (tasks/videommmu/utils.py).

    As `mmmu_open`, with more words before a tail.
    """
    return mmmu_open(answer, right, _VIDEO_KEYS)


def _tails(answer: str, keys: Sequence[str]) -> list[str]:
    """Return the shortest text after a key word of each line; the whole answer if there is none."""
    whole = answer.strip().strip(".").lower()
    lines = whole.split("\n")
    tails = []
    for number, line in enumerate(lines):
        last = ("=",) if number == len(lines) - 1 else ()
        shortest = ""
        for tail in (line.split(key)[-1].strip() for key in (*keys, *last) if key in line):
            if not shortest or len(tail) < len(shortest):
                shortest = tail
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            tails.append(shortest)
    return tails or [whole]


def _numbers(reading: str) -> list[str]:
    return [number for pattern in _NUMBERS for number in pattern.findall(reading)]


def _plain(reading: str) -> list[str | float]:
    """Return a number rounded to two decimals, or the text in lower case, a single letter by a blank."""
    reading = reading.strip()
    try:
        return [round(float(reading.replace(",", "")), 2)]
    except ValueError:
        reading = reading.lower()
        return [f" {reading}", f"{reading} "] if len(reading) == 1 else [reading]


def mathvista_reading(answer: str, options: Sequence[str], answer_type: str) -> str | None:
    """Read an answer as lmms-eval does for MathVista before it asks a judge; None: it asks one.

    Source: tasks/mathvista/mathvista_evals.py. `answer_type` is `integer`, `float`,
    `text` or `list`; `options` are empty for a free form.
    """
    reply = answer.strip()
    if options and reply in options:
        return reply
    kinds = {"integer": int, "float": float}
    if answer_type in kinds:
        try:
            return str(kinds[answer_type](reply))
        except ValueError:
            return None
    return None


def mathvista_right(
    reading: str, right: str, options: Sequence[str], answer_type: str, precision: float
) -> bool:
    """Return whether a reading is right as lmms-eval judges MathVista.

    It rounds by `precision` as the row has it: Python takes no float for the number of digits, so where
    that is 1.0 a free answer of type `float` is wrong there whatever it says.
    """
    if options:
        marked = re.search(r"\(([a-zA-Z])\)", reading)
        letter = marked[1].upper() if marked else reading.strip()
        by_letter = dict(zip(string.ascii_uppercase, options, strict=False))
        return by_letter.get(letter, reading).strip() == right.strip()
    if answer_type == "integer":
        reading = str(int(float(reading)))
    elif answer_type == "float":
        if not isinstance(precision, int):
            return False
        reading = str(round(float(reading), precision))
    return reading.strip() == right.strip()


def slake(answer: str, right: str) -> bool:
    """Return whether an answer is right as lmms-eval judges SLAKE (tasks/slake/utils.py).

    Lower case; no brackets with what is in them, no punctuation, also of the full width; synonyms of
    yes and no, also Chinese ones.
    """
    return _slake_plain(answer) == _slake_plain(right)


def _slake_plain(plain: str) -> str:
    plain = re.sub(r"\([^)]*\)", " ", plain.strip().lower())
    plain = re.sub("\uff08[^\uff09]*\uff09", " ", plain)
    plain = plain.translate(_MARKS)
    plain = " ".join(plain.split())
    plain = "xray" if plain == "x ray" else plain
    return "yes" if plain in _YES else "no" if plain in _NO else plain


def tagged_count(answer: str) -> int | None:
    """Return the digits in the answer tag as R1-V does (src/eval); without tags, bare digits."""
    match = re.search(r"<answer>\s*(\d+)\s*</answer>", answer)
    if match is None and "<answer>" not in answer:
        match = re.fullmatch(r"\s*(\d+)\s*", answer)
    return int(match[1]) if match else None


_KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_VIDEO_KEYS = (
    "are ", "in total ", "total ", "identify ", "recognize ", "calculated as ", "counted as ",
    "measured as ", "observed as ", "concluded as ", "found to be ", "equals ",
    "determined to be ", "number of ", "value is ", "adds up to ", "have ", "has ",
)  # fmt: skip
_NUMBERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"-?\b\d{1,3}(?:,\d{3})+\b",
        r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
        r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])",
    )
)
_WIDE = "".join(chr(ord(mark) + 0xFEE0) for mark in string.punctuation if mark != ".")
_CHINESE = "\u3001\u3002\u300a\u300b\u3010\u3011\uff61"
_MARKS = str.maketrans(dict.fromkeys(string.punctuation + _WIDE + _CHINESE, " "))
_YES = {"yes", "yeah", "yep", "true"}.union(
    "\u662f \u662f\u7684 \u6709 \u5305\u542b \u53ef\u4ee5 \u80fd \u4f1a \u6b63\u5e38".split()
)
_NO = {"no", "nope", "false"}.union(
    "\u5426 \u4e0d\u662f \u6ca1\u6709 \u65e0 \u4e0d\u5305\u542b \u4e0d\u80fd".split(),
    "\u4e0d\u4f1a \u4e0d\u53ef\u4ee5 \u4e0d\u6b63\u5e38 \u5f02\u5e38".split(),
)


# --------------------------------------------------------------------------------------------------
# Free text: ANLS, relaxed accuracy, VQA accuracy, substrings.


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


def equal_text(answer: str, right: str, harness: Harness) -> bool:
    """Return whether a text is the right one but for case: the harnesses on GQA.

    lmms_eval strips the answer (api/task.py), then takes punctuation out of both texts, which leaves
    blanks beside it (metric exact_match, api/metrics.py): "cat ." is wrong. vlmevalkit strips both texts
    (dataset/utils/vqa_eval.py).
    """
    stated, wanted = answer.strip().lower(), right.lower()
    if harness == "vlmevalkit":
        return stated == wanted.strip()
    return stated.translate(_REMOVED) == wanted.translate(_REMOVED)


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

    def normalize(reading: str) -> str:
        if formula:
            return reading.strip().replace("\n", " ").replace(" ", "")
        if harness == "lmms_eval":
            reading = reading.translate(_FULL_WIDTH)
        return reading.lower().strip().replace("\n", " ")

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
    name, stated = (label.replace(" ", "").replace("_", "").lower() for label in (right, answer))
    return name in stated or stated in name


def vqa_accuracy(
    answer: str, accepted: Sequence[str], harness: Harness, tokenized: bool = True
) -> float:
    """Return the VQA accuracy of TextVQA, in [0, 1]: min(1, matches / 3) over ten annotators.

    For each annotator the answers of the others are compared, and the mean is taken. Both texts
    are normalised: lower case, no articles, most punctuation removed, number words up to ten as
    digits, apostrophes of contractions put back (lmms-eval tasks/_task_utils/vqa_eval_metric.py,
    VLMEvalKit dataset/utils/vqa_eval.py; they treat `'s`, commas and full stops differently).
    `tokenized` is false for lmms-eval on VQAv2 (tasks/vqav2/utils.py), which leaves out the first step:
    there `'s` stays at its word, and a comma is punctuation.

    Source: Antol et al. 2015, VQA, arXiv 1505.00468, and the EvalAI server's processing.
    """
    reading = _vqa_normalize(answer, harness, tokenized)
    others = [_vqa_normalize(right, harness, tokenized) for right in accepted]
    total = others.count(reading)
    scores = [min(1.0, (total - (right == reading)) / 3) for right in others]
    return sum(scores) / len(scores)


def _vqa_normalize(reading: str, harness: Harness, tokenized: bool) -> str:
    if harness == "lmms_eval" and tokenized:
        reading = reading.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    reading = reading.replace("\n", " ").replace("\t", " ").strip()
    reading = strip_punctuation(reading, harness)
    words = [_DIGITS.get(word, word) for word in reading.lower().split()]
    words = [word for word in words if word not in ("a", "an", "the")]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words)


def strip_punctuation(reading: str, harness: Harness) -> str:
    """Remove or blank punctuation as the VQA evaluation does.

    A mark is removed where some mark of its kind has a blank next to it, or where the text has a
    comma between digits; else it becomes a blank. A full stop is removed unless a digit follows
    (vlmevalkit: or precedes); at most 32 are, since both pass the flag re.UNICODE as the count.
    """
    joined = _COMMA[harness].search(reading) is not None
    stripped = reading
    for mark in ';/[]"{}()=+\\_-><@`,?!':
        bare = joined or f"{mark} " in reading or f" {mark}" in reading
        stripped = stripped.replace(mark, "" if bare else " ")
    return _STOP[harness].sub("", stripped, count=int(re.UNICODE))


_REMOVED = str.maketrans("", "", string.punctuation)
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
