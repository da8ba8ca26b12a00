"""Letters of multiple choice, as harnesses find them in free text.

`letters` are the capital letters on offer, in order; a rule returns one of them, or None where the
harness finds none (lmms-eval draws one then, or counts it as wrong; VLMEvalKit asks a judge).
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from vlmrl.benchmark_rules import Harness
from vlmrl.benchmark_rules.words import strip_punctuation

# --------------------------------------------------------------------------------------------------
# Yes or no: POPE, MME.


Said = Literal["yes", "no"]


def yes_no_exact(answer: str) -> Said | None:
    """Read the answer as lmms-eval does for POPE (tasks/pope/utils.py): it is `yes` or `no`.

    Stricter than most: "Yes." is neither.
    """
    word = answer.lower().strip()
    return "yes" if word == "yes" else "no" if word == "no" else None


def yes_no_prefix(answer: str) -> Said | None:
    """Read the answer as lmms-eval does for MME (tasks/mme/utils.py): its first four characters.

    Full stops do not count, and a single `y` or `n` does.

    Differs from strict: "nose" says no, "eyes" says yes.
    """
    words = answer.lower().strip().replace(".", "")
    if len(words) == 1:
        return "yes" if words == "y" else "no" if words == "n" else None
    return "yes" if "yes" in words[:4] else "no" if "no" in words[:4] else None


def yes_no_words(answer: str) -> Said | None:
    """Read the answer as VLMEvalKit does (dataset/utils/yorn.py): one of the two words occurs.

    Differs from strict: "not yes" says yes; "there is no cat, so yes" says neither.
    """
    words = strip_punctuation(answer.lower(), "vlmevalkit").split()
    if ("yes" in words) == ("no" in words):
        return None
    return "yes" if "yes" in words else "no"


# --------------------------------------------------------------------------------------------------
# Letters of multiple choice as tasks about videos and audio find them: MVBench, MMAU, WorldSense and others.
#
# `letters` are the capital letters on offer, `options` the texts by letter; a rule returns a letter, or
# None where the harness finds none.


_DOTS_REMOVED = 32
"""MVBench's rule hands re.UNICODE, which is 32, to `sub` as its count."""
_MVBENCH_MARKS = (
    ";", "/", "[", "]", '"', "{", "}", "(", ")", "=", "+", "\\", "_", "-", ">", "<", "@", "`", ",",
    "?", "!",
)  # fmt: skip
_MOTION_PHRASES = (
    "THE BEST ANSWER IS",
    "THE CORRECT ANSWER IS",
    "THE ANSWER IS",
    "BEST ANSWER:",
    "ANSWER:",
)
_ANNOUNCED = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is",
    "The correct option is",
)


def mvbench_word(answer: str) -> str:
    """Return the letter A to E that is a word, else the whole in lower case without its marks.

    Source: lmms-eval tasks/mvbench/utils.py (mcq_acc).

    Differs from strict: case does not count, and the first such word is the answer: "a dog, so B"
    says A.
    """
    if listed := re.match(r"^([A-E])\.\s*(.+)$", answer.strip(), re.IGNORECASE):
        return listed[1].upper()
    words = answer.replace("\n", " ").replace("\t", " ").strip()
    whole, grouped = words, re.search(r"\d,\d", words) is not None
    for mark in _MVBENCH_MARKS:
        beside = grouped or mark + " " in whole or " " + mark in whole
        words = words.replace(mark, "" if beside else " ")
    words = re.sub(r"\.(?!\d)", "", words, count=_DOTS_REMOVED)
    for mark in "'\")(":
        words = words.strip(mark)
    words = words.strip().lower()
    match = re.search(r"\b([a-e])\b", words)
    return match[1].upper() if match else words


def long_video_letter(answer: str) -> str | None:
    """Return the first capital letter of A to E, be it that of a word: LongVideoBench.

    Source: lmms-eval tasks/longvideobench/utils.py, which draws an option where there is none.

    Differs from strict: "Because of it, C" says B.
    """
    return _first(answer, (*_ANNOUNCED, "Best answer:", "Best option:"), "ABCDE")


def mme_realworld_letter(answer: str, harness: Harness) -> str | None:
    """Find a letter of A to E as the harnesses do for MME-RealWorld.

    lmms_eval (tasks/mme_realworld/utils.py): the first capital letter of these, be it that of a word;
    without any, in at most ten words, the first option `(A)` to `(E)` in which the answer occurs in
    lower case. vlmevalkit (dataset/image_mcq.py) takes what stands in the first answer tag, in capital
    letters, and lacks commas between two pairs of its phrases.

    Differs from strict: "Because of it, C" says B, and an empty answer says A.
    """
    phrases: tuple[str, ...] = (*_ANNOUNCED, "Best answer:", "Best option:")
    if harness == "vlmevalkit":
        tagged = re.search(r"<answer>(.*?)</answer>", answer, re.DOTALL)
        answer = tagged[1].strip().upper() if tagged else answer
        phrases = (*_ANNOUNCED[:4], "".join(_ANNOUNCED[4:]), "Best answer:Best option:")
    if letter := _first(answer, phrases, "ABCDE"):
        return letter
    rest = _without(answer, phrases)
    if len(rest.split()) > 10:
        return None
    return next((letter for letter in "ABCDE" if rest.lower() in f"({letter.lower()})"), None)


def videochat_letter(answer: str) -> str | None:
    """Return the first capital letter of A to G, be it that of a word: VideoChat-R1.

    Source: src_eval/evaluate_gqa.py, which lacks a comma between its last two phrases.
    """
    return _first(answer, (*_ANNOUNCED, "Best answer:Best option:"), "ABCDEFG")


def _first(answer: str, phrases: Sequence[str], letters: str) -> str | None:
    match = re.search(f"[{letters}]", _without(answer, phrases))
    return match[0] if match else None


def _without(answer: str, phrases: Sequence[str]) -> str:
    rest = answer.strip()
    for phrase in phrases:
        rest = rest.replace(phrase, "")
    return rest


def videomathqa_letter(answer: str) -> str | None:
    """Return the first capital letter of A to E, be it that of a word: VideoMathQA.

    Source: lmms-eval tasks/videomathqa/utils.py, which lacks a comma between its last phrases, so that it
    removes neither "The correct option is" nor "Best option:".

    Differs from strict: "Because of it, C" says B, and so does "Best option: C".
    """
    phrases = (*_ANNOUNCED[:4], "The best option isThe correct option is")
    return _first(answer, (*phrases, "Best answer:Best option:"), "ABCDE")


def egoschema_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for EgoSchema (tasks/egoschema/utils.py), which draws one else.

    `options` are the published texts by letter, `A. text`. Each letter stands where `(A)`, `A ` or `A.`
    occurs last; of several the first counts. Without any, in more than five words, the option whose text
    comes first.

    Differs from strict: the article of "A man, so B" says A.
    """
    padded, forms = _padded(answer), ("({})", "{} ", "{}.")
    places = {letter: [padded.rfind(form.format(letter)) for form in forms] for letter in options}
    if not any(at >= 0 for each in places.values() for at in each) and len(padded.split()) > 5:
        places = {key: [padded.lower().rfind(text.lower())] for key, text in options.items()}
    first = {
        key: min(at for at in each if at >= 0) for key, each in places.items() if max(each) >= 0
    }
    return min(first, key=lambda letter: first[letter]) if first else None


def motion_letter(answer: str) -> str | None:
    """Find a letter of A to F as lmms-eval does for MotionBench (tasks/motionbench/utils.py).

    After the last thought, the first that is a word, else before a mark, else anywhere; in either case.

    Differs from strict: the article of "a man, so B" says A.
    """
    rest = answer.rpartition("</think>")[2].strip().upper()
    for phrase in _MOTION_PHRASES:
        rest = rest.replace(phrase, "")
    for pattern in (r"\b([A-F])\b", "([A-F])[.):]", "([A-F])"):
        if match := re.search(pattern, rest):
            return match[1]
    return None


def perception_letter(answer: str) -> str | None:
    """Return the first capital letter of A to D that is a word: the Perception Test.

    Source: lmms-eval tasks/perceptiontest/val/utils.py.

    Differs from strict: the article of "A dog is B" says A.
    """
    match = re.search(r"\b([A-D])\b", answer.strip())
    return match[1] if match else None


def mmau_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Find a letter as lmms-eval does for MMAU (tasks/mmau/utils.py), which draws one where none is.

    The forms `(A)`, ` A ` and `A.` in this order; of several letters the last that stands between
    blanks, else the first on offer.
    """
    return _form(_padded(answer), letters, ("({})", " {} ", "{}."), " {} ")


def omni_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Find a letter as lmms-eval does for OmniBench (tasks/omni_bench/utils.py).

    The forms `(A)`, `A ` and `A.` in this order; of several the last.

    Differs from strict: the last letter of "UNESCO B" says B, and so does that of "DVB ".
    """
    return _bracketed_or_bare(f" {answer.strip()} ", letters)


def _padded(answer: str, marks: str = ",.!?;:'") -> str:
    """Return the answer between blanks, without each mark in turn at its ends."""
    for mark in marks:
        answer = answer.strip(mark)
    return f" {answer} "


def _form(padded: str, letters: Collection[str], forms: Sequence[str], position: str) -> str | None:
    """Return the letter in the first form that occurs; of several the one whose `position` is last."""
    for form in forms:
        if held := [letter for letter in letters if form.format(letter) in padded]:
            return max(held, key=lambda letter: padded.rfind(position.format(letter)))
    return None


def _bracketed_or_bare(padded: str, letters: Collection[str]) -> str | None:
    bracketed = _form(padded, letters, ("({})",), "({})")
    return bracketed or _form(padded, letters, ("{} ", "{}."), " {} ")


def _last_text(padded: str, options: Mapping[str, str]) -> str | None:
    """Return, in more than five words, the last option whose text occurs."""
    lower = padded.lower()
    held = [letter for letter, text in options.items() if text.lower() in lower]
    if not held or len(padded.split()) <= 5:
        return None
    return max(held, key=lambda letter: lower.rfind(options[letter].lower()))


def _only_text(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the only option whose text occurs."""
    held = [letter for letter, text in options.items() if text.lower() in answer.lower()]
    return held[0] if len(held) == 1 else None


def worldsense_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for WorldSense (tasks/worldsense/utils.py), which says A for none.

    A letter anywhere, be it inside a word; of several the last in brackets, else the first on offer;
    without any, in more than five words, the last option whose text occurs.

    Differs from strict: "Definitely B" says B, since D and B occur and B is offered first.
    """
    padded = _padded(answer)
    return _form(padded, options, ("{}",), "({})") or _last_text(padded, options)


# --------------------------------------------------------------------------------------------------
# Letters of multiple choice as harnesses find them for any task.


_PHRASES = (
    *(f"{the}{kind} {noun} is" for noun in ("answer", "option", "choice")
      for kind in ("correct", "best") for the in ("", "the ")),
    *(f"{the}{noun} is" for noun in ("answer", "choice") for the in ("", "the ", "my ")),
    "i choose", "i select", "i pick",
    "\uc635\uc158", "\uc815\ub2f5\uc740", "\ub2f5\uc740", "\ub2f5:",
    "\u7b54\u6848\u662f", "\u7b54\u6848\u4e3a", "\u9009", "\u7b54\u3048\u306f",
)  # fmt: skip
_PHRASES = tuple(p for p in _PHRASES if p not in ("best choice is", "the best choice is"))
"""After these a letter is an answer; the last are Korean, Chinese and Japanese."""
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
_STATED = re.compile(r"(?i)(?:correct\s+)?answer\s+is\s+\**([ABCD])\**")
_BLANKED = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))


def lmms_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Find a letter as extract_mcq_answer of lmms-eval does (tasks/_task_utils/mcq_extract.py).

    Forms by rank: at the start, at the end, after a phrase such as "the answer is", `(A)`, `A.`,
    `A:`, `A)`, `A `, anywhere; the later place wins within a rank, the earlier letter within a place.

    Differs from strict: "A dog, so the answer is C" says A.
    """
    padded = _padded(answer.strip(), ",.!?;:'\"")
    core, lower = padded.strip(), padded.lower()
    ranked: list[tuple[int, int, str]] = []
    for form, rank in (("({})", 6), ("{}.", 5), ("{}:", 4), ("{})", 3), ("{} ", 2)):
        places = ((padded.rfind(form.format(letter)), letter) for letter in letters)
        ranked += [(rank, index, letter) for index, letter in places if index >= 0]
    for phrase in _PHRASES:
        if (at := lower.find(phrase)) >= 0:
            places = ((padded.find(letter, at + len(phrase)), letter) for letter in letters)
            ranked += [(7, index, letter) for index, letter in places if index >= 0]
    for letter in letters:
        if core.startswith(letter) and not core[1:2].isalpha():
            ranked.append((10, 0, letter))
        if core.endswith(letter) and not core[-2:-1].isalpha():
            ranked.append((9, len(padded) - 1, letter))
    if not ranked:
        ranked = [(0, padded.rfind(letter), letter) for letter in letters if letter in padded]
    return max(ranked, key=lambda entry: entry[:2])[2] if ranked else None


def mmmu_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for MMMU (tasks/_task_utils/mmmu_mcq_utils.py).

    `options` are the texts by letter. The forms `(A)`, `A `, `A.` are tried in this order, then, in
    an answer of more than five words, the options' texts; of several the last counts.

    Differs from strict: the last letter A of "A dog" is an answer; where none is found the harness
    draws one.
    """
    padded = _padded(answer)
    return _bracketed_or_bare(padded, options) or _last_text(padded, options)


def vlmeval_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as can_infer of VLMEvalKit does (utils/matching_util.py).

    `options` are the texts by letter. It is the only letter among the words, and one of the last
    five; else stated as "answer is B"; else the only option whose text occurs, in an answer that
    is at most twice as long as all options. "Z", which is no option, is a refusal.

    Differs from strict: "A cat" says A where the cat is B; a refusal and None are wrong unless a
    judge says otherwise.
    """
    if "Failed to obtain answer via API" not in answer:
        if any(refusal in answer for refusal in _REFUSALS):
            return "Z"
        words = answer.translate(_BLANKED).split()
        present = [letter for letter in options if letter in words]
        if len(present) == 1 and words.index(present[0]) > len(words) - 5:
            return present[0]
        if not present and "Z" in words:
            return "Z"
        stated = _STATED.search(answer)
        if stated and stated[1].upper() in options:
            return stated[1].upper()
    if len(answer.lower()) > 2 * sum(map(len, options.values())):
        return None
    return _only_text(answer, options)


def vlmeval_mmmu(answer: str, right: str, options: Mapping[str, str]) -> bool | None:
    """Return whether an answer is right as VLMEvalKit judges MMMU; None: it asks a judge.

    `right` is the letter, or without `options` the open answer, which VLMEvalKit offers as option A
    beside "Other Answers" (MMMU_preproc of dataset/utils/multiple_choice.py).

    Differs from strict: any answer that says A is right where the question is open; an open answer
    that is a single capital letter is itself the letter wanted.
    """
    wanted = right if len(right) == 1 and right in string.ascii_uppercase else "A"
    letter = vlmeval_letter(answer, options or {"A": right, "B": "Other Answers"})
    return None if letter is None else letter == wanted


def vlmeval_mathvista(answer: str, right: str, options: Sequence[str], kind: str) -> bool | None:
    """Return whether an answer is right as VLMEvalKit judges MathVista; None: it asks a judge.

    `right` is the letter where there are `options`, else the number; `kind` is the type of answer. A
    whole answer that is the right number is right unless it is 0; all other numbers, texts and lists
    go to the judge (post_check of dataset/utils/mathvista.py).
    """
    if options:
        letter = vlmeval_letter(answer, dict(zip(string.ascii_uppercase, options, strict=False)))
        return None if letter is None else letter == right
    read = {"integer": int, "float": float}.get(kind)
    try:
        return True if read and read(answer) == read(right) != 0 else None
    except ValueError:
        return None


def first_letter(answer: str) -> str:
    """Return the first character in upper case: lmms-eval on SEED-Bench (tasks/seedbench/utils.py).

    Differs from strict: "Answer: B" says A.
    """
    return answer.strip()[:1].strip().upper()


def option_start(answer: str) -> str:
    """Return the letter before a full stop at the start, else the whole: lmms-eval on AI2D."""
    match = re.match(r"\s*([A-Z])\.", answer)
    return match[1] if match else answer


def cv_bench_letter(answer: str) -> str | None:
    """Find a letter as lmms-eval does for CV-Bench (tasks/cv_bench/utils.py): the first one.

    Differs from strict: "The answer is B" says T.
    """
    match = re.match(r"[\(\s]*([A-Z])", answer.strip(), re.IGNORECASE)
    return match[1].upper() if match else None


def blink_letter(answer: str, letters: Sequence[str] = tuple(string.ascii_uppercase)) -> str | None:
    """Find a letter as lmms-eval 0.7.3 does for BLINK (tasks/blink/utils.py).

    A short first line that is a letter; else the last of "answer is B", or of `(B)`; else a letter
    at the start, be it that of a word.
    """
    reply, offered = answer.strip(), "".join(letters)
    line = reply.split("\n", 1)[0].strip()
    terse = re.match(rf"\(?([{offered}])\)?[\.\s:,)]*$", line, re.IGNORECASE)
    if len(line) <= 4 and terse:
        return terse[1].upper()
    stated = rf"answers?(?:\s+is)?\s*[:\-]?\s*\(?([{offered}])\)?(?![A-Za-z])"
    if matches := re.findall(stated, reply, re.IGNORECASE):
        return str(matches[-1]).upper()
    if matches := re.findall(rf"\(([{offered}])\)", reply):
        return str(matches[-1])
    start = re.match(rf"[\(\s]*([{offered}])", reply, re.IGNORECASE)
    return start[1].upper() if start else None


def vstar_letter(answer: str) -> str | None:
    """Find a letter of A to D as lmms-eval does for V* (tasks/vstar_bench/utils.py).

    Differs from strict: case does not count, so "Based on" says B.
    """
    reply = answer.strip().upper()
    for pattern in _VSTAR:
        if match := pattern.search(reply):
            return match[1].upper()
    letters = re.findall("[A-D]", reply)
    return letters[0] if len(letters) == 1 else None


_VSTAR = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^([A-D])\s*[\.)\]]*",
        r"(?:THE\s+)?(?:ANSWER|CHOICE|OPTION)(?:\s+IS)?[\s:]+([A-D])",
        r"\(([A-D])\)",
        r"([A-D])\s*(?:\.|\)|])",
        r"(?:^|\s)([A-D])(?:\s|$)",
    )
)


# --------------------------------------------------------------------------------------------------
# Letters of multiple choice as single tasks find them: MMVP, VisuLogic, MMBench, ScienceQA and others.


Pair = tuple[str, str]


def mmvp_letter(answer: str) -> str | None:
    """Find A or B as lmms-eval does for MMVP (tasks/mmvp/utils.py).

    Differs from strict: case does not count, and an A may end a word: "a cat" and "Panda " say A.
    """
    reply = answer.strip()
    for pattern in _MMVP:
        if match := pattern.search(reply):
            return match[1].upper()
    return reply[0].upper() if reply[:1] in ("a", "b", "A", "B") else None


def visulogic_letter(answer: str) -> str | None:
    """Find a letter of A to D as lmms-eval does for VisuLogic (tasks/visulogic/utils.py).

    The last in an answer tag, in a box, after "answer is" or "option", or in brackets; else the first
    character of an answer of at most three.
    """
    reply = answer.strip()
    for pattern in _VISULOGIC:
        if matches := pattern.findall(reply):
            return str(matches[-1]).upper()
    start = reply[:1].upper()
    return start if len(reply) <= 3 and start in ("A", "B", "C", "D") else None


def geometry_letter(answer: str, options: Sequence[str]) -> str | None:
    """Find a letter of A to D as lmms-eval does for Geometry3K (tasks/geometry3k/utils.py).

    The last after "answer:", before a full stop or a bracket, alone, or as a word, in either case; else
    the first option whose text occurs.

    Differs from strict: the article of "a triangle" says A.
    """
    reply = answer.strip()
    for pattern in _GEOMETRY:
        if matches := pattern.findall(reply):
            return str(matches[-1]).upper()
    pairs = zip("ABCD", options, strict=False)
    return next((letter for letter, text in pairs if text.lower() in reply.lower()), None)


def mmbench_letter(answer: str, options: Mapping[str, str], rest: bool = True) -> str | None:
    """Find a letter as lmms-eval does for MMBench (tasks/mmbench/mmbench_evals.py).

    `options` are the texts by letter. The only letter among the words (A not among more than three),
    bare or with one of several marks; else the only option whose text occurs. `rest` goes on with
    `lmms_letter`, as its static task does; without it a judge is asked.
    """
    words = answer.split()
    failed = "Failed to obtain answer via API" in answer
    letter = (None if failed else _only_letter(words)) or _only_text(answer, options)
    return lmms_letter(answer, sorted(options)) if letter is None and rest else letter


def _only_letter(words: Sequence[str]) -> str | None:
    letters = "ABCDE"
    bare = [letter for letter in letters if letter in words]
    if len(bare) == 1 and not ("A" in words and len(words) > 3):
        return bare[0]
    for before, after in _MARKS:
        marked = [letter for letter in letters if before + letter + after in words]
        if len(marked) == 1:
            return marked[0]
    return None


def science_letter(answer: str) -> str:
    """Return the capital letter before a full stop, else the whole: lmms-eval on ScienceQA.

    Source: tasks/scienceqa/utils.py.
    """
    reply = answer.strip()
    return reply[0] if len(reply) >= 2 and reply[0].isupper() and reply[1] == "." else reply


def hr_bench_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for HR-Bench (tasks/hrbench/hrbench_evals.py).

    `options` are the texts by letter. A refusal of four known wordings says Z; else the only option
    letter that stands alone once punctuation is blank; else Z alone; else the only option whose text
    occurs. What is left goes to a judge.
    """
    if "Failed to obtain answer via API" not in answer:
        if any(refusal in answer for refusal in _REFUSALS):
            return "Z"
        words = answer.translate(_BLANKED).split()
        letters = [letter for letter in options if letter in words]
        if len(letters) == 1:
            return letters[0]
        if not letters and "Z" in words:
            return "Z"
    return _only_text(answer, options)


def naturalbench_word(answer: str, words: Pair) -> str | None:
    """Return which of two words comes first, in either case: lmms-eval on NaturalBench.

    Source: tasks/naturalbench/utils.py; `words` are yes and no, or A and B. Differs from strict: the
    article of "a red B" says A.
    """
    at = {
        word: match.start()
        for word in words
        if (match := re.search(rf"\b{word}\b", answer, re.IGNORECASE))
    }
    return min(at, key=lambda word: at[word]) if at else None


def mmbench_gui_letter(answer: str) -> str | None:
    """Find a letter of A to F as MMBench-GUI does (utils/misc.py), in either case.

    Before a full stop or a colon, after "option", after "answer", at the start of a line, in quotes, or
    as a word before no other: the first of the first form that occurs.

    Differs from strict: a line that begins "Because" says B.
    """
    return next((match[1].upper() for form in _MMBENCH_GUI if (match := form.search(answer))), None)


def tagged_letter(answer: str) -> str | None:
    """Return the word in the answer tag as Med-R1 does (src/eval_vqa); without tags, a bare word."""
    match = re.search(r"<answer>\s*(\w+)\s*</answer>", answer)
    if match is None and "<answer>" not in answer:
        match = re.fullmatch(r"\s*(\w+)\s*", answer)
    return match[1] if match else None


_MARKS: tuple[Pair, ...] = (
    ("", "."), ("", ","), ("", ":"), ("", ")"), ("", ")."), ("(", ")"), ("(", ")."),
    (":", ""), (":", ","), (":", "."), (":", ")"), (":", ")."),
)  # fmt: skip
_MMVP = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^\s*\(?([AB])\)?\.?\s*$",
        r"^\s*\(?([AB])\)?[\.\s]",
        r"answer\s+is\s+\(?([AB])\)?",
        r"option\s+\(?([AB])\)?",
        r"\(?([AB])\)?(?:\s|$)",
    )
)
_MMBENCH_GUI = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"\b([A-F])[.:](?!\w)",
        r"\bOption\s+([A-F])\b",
        r"\bAnswer\s*[:\uff1a]?\s*([A-F])\b",
        r"^[ \t]*([A-F])",
        r"['\"]([A-F])['\"]",
        r"\b([A-F])\b(?!\s+\w)",
    )
)
_VISULOGIC = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"<answer>\s*\(?([A-D])\)?\s*</answer>",
        r"\\boxed\{\s*([A-D])\s*\}",
        r"answer\s*(?:is|:|-)\s*\(?([A-D])\)?\b",
        r"option\s*([A-D])\b",
        r"\(([A-D])\)",
    )
)
_GEOMETRY = tuple(
    re.compile(pattern)
    for pattern in (
        r"[Aa]nswer\s*[:=]\s*\(?([A-Da-d])\)?",
        r"\b([A-Da-d])\s*[.)\]]",
        r"^\s*\(?([A-Da-d])\)?$",
        r"\b([A-Da-d])\b",
    )
)
