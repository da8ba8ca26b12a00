"""Mathematics, physics and puzzles: what harnesses read of a solution with its steps."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmrl.benchmark_rules.mathematics import is_number
from vlmrl.benchmark_rules.spans import tagged

# --------------------------------------------------------------------------------------------------
# The boxes of LaTeX.


_BOX = "\\boxed{"


def _boxes(text: str) -> Iterator[tuple[int, str | None]]:
    """Yield the start of each box and what is in it, None where it is not closed; one pass."""
    opened: list[int] = []
    closed = {}
    for mark in re.finditer(r"[{}]", text):
        if mark[0] == "{":
            opened.append(mark.end())
        elif opened:
            closed[opened.pop()] = mark.start()
    for match in re.finditer(re.escape(_BOX), text):
        end = closed.get(match.end())
        yield match.start(), None if end is None else text[match.end() : end]


# --------------------------------------------------------------------------------------------------
# lmms-eval's reader of reasoned answers (tasks/_task_utils/reasoning_utils.py): WeMath, LogicVista,
# DynaMath and others. What it calls wrong is put to math-verify as well: see the scorer.


_THOUGHTS = (("<think>", "</think>"), ("<analysis>", "</analysis>"))
_LETTERS = "ABCDEFGH"
_RANKS = {".": 5, ":": 4, ")": 3, " ": 2, "-": 1, "_": 1, "=": 1}
_FORMS = (("({})", 6), *((f"{{}}{mark}", rank) for mark, rank in _RANKS.items()))
_PHRASES = (
    "the correct answer|the best answer|the answer|correct answer|best answer|answer|my answer is|"
    "the correct option is|the option is|correct option is|option is|the correct choice is|"
    "the choice is|correct choice is|choice is|my choice is|i choose|i select|i pick"
).split("|")
_LAST_NUMBER = re.compile(r"\b(\d+(?:\.\d+)?)\b(?:\s*\.?\s*$)")
_NEARLY = 0.9
"""Least share of the longer text that the shorter one is, if it occurs in it."""


def without_thoughts(completion: str) -> str:
    """Return a completion without its thoughts, as lmms-eval removes them before any rule.

    Source: lmms-eval api/reasoning.py, by the default of `--reasoning_tags`.
    """
    for start, end in _THOUGHTS:
        while (first := completion.find(start)) >= 0:
            last = completion.find(end, first)
            if last < 0:
                break
            completion = completion[:first] + completion[last + len(end) :]
        if end in completion and start not in completion:
            completion = completion.rsplit(end, 1)[-1]
    return completion.strip()


def reasoned_reading(answer: str) -> str:
    """Return the text of the answer tag; else of the last box; else the number at the end of a line.

    Of several lines the last that ends with a number; a sign is not read. One full stop at the end does
    not count.
    """
    answer = answer.strip()
    reading = tagged(answer, "answer")
    if reading is None:
        held = [held for _, held in _boxes(answer) if held is not None]
        reading = held[-1] if held else ""
        lines = reversed(answer.split("\n") if not reading else [])
        numbers = (_LAST_NUMBER.search(line) for line in lines)
        reading = reading or next((match[1] for match in numbers if match), "")
    return _plain(reading.strip())


def _plain(text: str) -> str:
    return text.removesuffix(".").strip()


def reasoned_right(reading: str, right: str) -> bool:
    """Return whether a reading is the truth, before math-verify is asked.

    A truth in which a letter A to H is read is one of multiple choice, and the letters are compared;
    else one text is in the other and not much shorter. Differs from strict: "Done" is the letter D, of
    the truth `A, D` only A is compared, and any truth with a capital letter A to H is a letter.
    """
    right = _plain(right)
    if letter := reasoned_letter(right):
        return reasoned_letter(reading) == letter
    held = reading in right and len(reading) >= _NEARLY * len(right)
    holds = right in reading and len(right) >= _NEARLY * len(reading)
    return held or holds or reading.strip() == right


def reasoned_letter(reading: str) -> str:
    """Find a letter A to H, an empty text where there is none.

    Forms by rank: at the start, at the end, `1. A`, after a phrase such as "answer", `(A)`, `A.`, `A:`,
    `A)`, `A `, the rest, anywhere; within a rank the first place counts. The start and the end may be
    those of a word.
    """
    core = reading.strip()
    for mark in ",.!?;:'\"":
        core = core.strip(mark)
    padded = f" {core} "
    lower, bare = padded.lower(), padded.strip()
    ranked: list[tuple[int, int, str]] = []
    for form, rank in _FORMS:
        ends = ((padded.rfind(form.format(letter)), letter) for letter in _LETTERS)
        ranked += [(rank, -at, letter) for at, letter in ends if at >= 0]
    for phrase in _PHRASES:
        if (begins := lower.find(phrase)) >= 0:
            ends = ((padded.find(letter, begins), letter) for letter in _LETTERS)
            ranked += [(7, -at, letter) for at, letter in ends if at >= 0]
    for number, letter in enumerate(_LETTERS, 1):
        if bare.startswith(letter):
            ranked.append((10, 0, letter))
        if bare.endswith(letter):
            ranked.append((9, 1 - len(padded), letter))
        if (at := padded.rfind(f"{number}. {letter}")) >= 0:
            ranked.append((8, -at, letter))
    if not ranked:
        ranked = [(0, -padded.rfind(letter), letter) for letter in _LETTERS if letter in padded]
    return max(ranked, key=lambda entry: entry[:2])[2] if ranked else ""


# --------------------------------------------------------------------------------------------------
# Letters: VisualPuzzles, We-Math.


_PUZZLE_FORMS = tuple(
    re.compile(form)
    for form in (
        r"Answer:\s*\(([A-Za-z])\)",
        r"(?<!Final )Answer:\s*([A-Za-z])",
        r"Answer:\s*([A-Za-z])",
        r"\(([A-Za-z])\)",
        r"([A-Za-z])\)",
        r"\{([A-Za-z])\}",
        r"\$([A-Za-z])\$",
        r" ([A-Da-d])\.",
    )
)


def puzzle_letter(answer: str, options: Sequence[str] | None) -> str | None:
    """Find a letter as lmms-eval does for VisualPuzzles, which draws one where none is found.

    The first form in which one of A to D stands, the last place in it; in an answer of at most four
    characters any such letter after a blank; else an option's text, after "answer:" or the last one.

    Source: lmms-eval tasks/VisualPuzzles/utils.py (parse_response). Differs from strict: the b of
    "(b) is wrong" is an answer, and so is the d of "end)".
    """
    padded = f" {answer.strip()}"
    forms = [form.findall(padded) for form in _PUZZLE_FORMS]
    short = re.findall(r" ([A-Da-d])", padded) if len(padded) <= 5 else []
    for letters in (*forms, short):
        offered = [letter.upper() for letter in letters if letter.upper() in "ABCD"]
        if offered:
            return str(offered[-1])
    if options is None:
        return None
    texts = dict(zip("ABCD", options, strict=False))
    lower = padded.lower()
    for letter, text in texts.items():
        if f"answer: {text}" in lower or f"answer:{text}" in lower:
            return letter
    places = {letter: padded.rfind(text) for letter, text in texts.items()}
    last = max(places, key=lambda letter: places[letter])
    return last if places[last] >= 0 else None


def stated_letter(answer: str) -> str | None:
    """Return the last letter after "answer:", of any case: VLMEvalKit on VisualPuzzles.

    Source: dataset/utils/visualpuzzles.py (extract_answer).
    """
    letters = re.findall(r"\banswer\s*:\s*([A-Z])\b", answer, re.IGNORECASE)
    return letters[-1].upper() if letters else None


def wemath_letter(answer: str) -> str | None:
    """Return the first character after the last "Answer", if it is A to H: VLMEvalKit on We-Math.

    Colons, full stops and angle brackets do not count. Source: dataset/utils/wemath.py
    (load_and_process_data), which is used where no judge is asked. Differs from strict: an answer that
    begins with "Because" is B.
    """
    text = re.sub("[<>:.]", "", answer.split("Answer")[-1]).strip()
    return text[0] if text and text[0] in _LETTERS else None


# --------------------------------------------------------------------------------------------------
# Letters, right or wrong, and blanks in Chinese: CMMMU (lmms-eval tasks/cmmmu/utils.py).


_CLAIMS = ("是", "为", "所以", "判断", "陈述", "说法", "表达", "答案", "结果")
_RESULTS = tuple("是 为 所以 等于 方案 选择 正确答案 因此 最后 答案 结果".split())
_RIGHT = ("正确", "对", "准确", "肯定", "对的")
_WRONG = ("不对", "错误", "不正确", "不准确", "不合适", "否定", "错的", "错")
_UNDECIDED = ("对错", "是否正确", "否正确", "或者", "是否", "正确性", "对不")
_NUMBERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"-?\d{1,3}(?:，\d{3})+",
        r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
        r"-?(?:\d+\.\d+|\.\d+|\d+)(?![eE][+-]?\d+)(?!，\d)",
    )
)


def cmmmu_letters(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letters that occur most often: in brackets, else anywhere, else as an option's text.

    Letters that occur equally often are all the answer. None: nothing occurs, and the harness draws one
    letter. Differs from strict: the A of "A dog" counts, and so do the letters of a word.
    """
    for mark in ",.!?;:'":
        answer = answer.strip(mark)
    padded = f" {answer} "
    counts: Counter[str] = Counter()
    for form in ("({})", "{}"):
        counts = counts or +Counter({key: padded.count(form.format(key)) for key in options})
    if not counts and padded.split():
        counts = +Counter({key: padded.count(text) for key, text in options.items()})
    if not counts:
        return None
    return "".join(key for key in options if counts[key] == max(counts.values()))


def cmmmu_judged(answer: str) -> str | None:
    """Return 对 or 错, which more of the statements say; None: as many, and the harness draws.

    Differs from strict: 不对 and 不正确 say 对 and 正确, which are looked for first.
    """
    stated = {tail for tail in _tails(answer, _CLAIMS) if not _holds(tail, _UNDECIDED)}
    for_it = sum(_holds(tail, _RIGHT) for tail in stated)
    against = sum(_holds(tail, _WRONG) for tail in stated if not _holds(tail, _RIGHT))
    return None if for_it == against else "对" if for_it > against else "错"


def cmmmu_blank(answer: str, right: str) -> bool:
    """Return whether a statement, or a number in one, is the truth; a text need only hold it.

    Numbers agree to two decimals. Differs from strict: of several numbers any may be right.
    """
    accepted = _normalized(right, right)
    tails = _tails(answer, _RESULTS, last="=")
    numbers = [number for tail in tails for form in _NUMBERS for number in form.findall(tail)]
    for stated in (*tails, *numbers):
        for value in _normalized(stated, right):
            if isinstance(value, str):
                texts = [text for text in accepted if isinstance(text, str)]
                if any(text in value for text in texts):
                    return True
            elif value in accepted:
                return True
    return False


def _holds(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)


def _tails(answer: str, marks: Sequence[str], last: str = "") -> list[str]:
    """Return of each sentence the shortest text after a mark; the answer where there is none.

    `last` is one more mark, of the last sentence.
    """
    answer = answer.strip("。").strip()
    sentences = re.split(r"。|\n", answer)
    tails = []
    for number, sentence in enumerate(sentences):
        shortest = ""
        more = (last,) if last and number == len(sentences) - 1 else ()
        for mark in (*marks, *more):
            if mark in sentence:
                tail = sentence.split(mark)[-1].strip()
                shortest = tail if not shortest or len(tail) < len(shortest) else shortest
        if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'"):
            tails.append(shortest)
    return tails or [answer]


def _normalized(text: str, right: str) -> list[str | float]:
    """Return a number to two decimals, or a text that is not much longer than the truth."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        longer = len(text) > len(right) + 20
        return [] if longer or _latin(text) > _latin(right) + 2 else [text]


def _latin(text: str) -> int:
    return sum("a" <= c <= "z" or "A" <= c <= "Z" for c in text)


# --------------------------------------------------------------------------------------------------
# Physics: PhyX (lmms-eval tasks/phyx/phyx_evals.py, VLMEvalKit dataset/utils/phyx.py).


_FAILED = "Failed to obtain answer via API."
_ANNOUNCED = re.compile(
    r"\b(?:final\s+answer|correct\s+answer)\b[^:：]*[:：]\s*(.*?)(?=\n\n\n|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"\b(?:correct|answer|option|Answer|Option|Correct)\b[\s\S]*?([A-D])")


def phyx_letter(answer: str) -> str | None:
    """Return the first capital A to D after "answer", "option" or "correct"; else the last `A:`.

    Differs from strict: the A of "the answer is clearly: As we see, B" is an option.
    """
    if match := _OPTION.search(answer.strip()):
        return match[1]
    letters = re.findall("([ABCD]):", answer)
    return str(letters[-1]) if letters else None


def phyx_choice(answer: str, right: str) -> bool:
    """Return whether the letter is right, or the right one stands before a colon or beside stars."""
    answer = answer.strip()
    if answer == _FAILED:
        return False
    letter = phyx_letter(answer)
    beside = (f"{right}:", f"{right}**", f"**{right}")
    return (letter or "").lower() == right.strip().lower() or any(form in answer for form in beside)


def phyx_choice_judged(answer: str, right: str) -> bool | None:
    """Return whether the letter, or else the whole answer, is right; None: a judge decides."""
    answer = answer.strip()
    if answer == _FAILED:
        return False
    reading = phyx_letter(answer) or answer
    if reading.lower() == right.strip().lower():
        return True
    return False if reading in ("A", "B", "C", "D") else None


def phyx_open(answer: str, right: str) -> bool:
    """Return whether the first box, or what follows "final answer:", is the truth, or the answer holds it.

    Differs from strict: 5 is right where 15 is stated.
    """
    answer, reading = _phyx_reading(answer)
    if answer == _FAILED:
        return False
    wanted = right.strip().lower()
    stated = (answer if reading is None else reading).strip().lower()
    return wanted in (stated, answer.lower()) or right in answer


def phyx_open_judged(answer: str, right: str) -> bool | None:
    """Return whether the reading is the truth; None: a judge decides."""
    content, reading = _phyx_reading(answer)
    if content == _FAILED:
        return False
    stated = answer if reading is None else reading
    return True if right.strip().lower() == stated.strip().lower() else None


def _phyx_reading(answer: str) -> tuple[str, str | None]:
    """Return the answer, or what it calls its `content`, and the first box or the announced answer."""
    answer = answer.strip()
    literal = _literal(answer) if "content" in answer else None
    content = literal.get("content") if isinstance(literal, dict) else None
    answer = content.strip() if isinstance(content, str) and content else answer
    first = next(_boxes(answer), (0, None))[1]
    match = _ANNOUNCED.search(answer)
    reading = match[1] if first is None and match else first
    if reading is None:
        return answer, None
    return answer, reading.replace("\\dfrac", "\\frac").replace("\\pi", "3.14")


def _literal(text: str) -> Any:
    """Return the value of a literal of Python, also of an object whose braces or quotes lack."""
    braced = text if text.startswith("{") else "{" + text
    braced = braced if braced.endswith("}") else braced + "}"
    braced = re.sub(r'([{,]\s*)([^"\{\}\:\,\s]+)\s*:', r'\1"\2":', braced)
    for form in (text, braced):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                return ast.literal_eval(form)
        except (ValueError, SyntaxError):
            continue
        except (TypeError, MemoryError, RecursionError):
            return None
    return None


# --------------------------------------------------------------------------------------------------
# What EMMA's authors read without a judge (lmms-eval tasks/emma/utils.py, fast_extract_answer).


_FLAGS = ("final answer is", "correct answer is", "answer should be", "answer is", "answer:")


def emma_reading(answer: str) -> str:
    """Return a letter at the start, a whole number, the last box, or the words after "answer is"."""
    answer = answer.strip()
    for letter in _LETTERS:
        if answer.upper() == letter or answer.startswith((f"{letter}:", f"{letter}.")):
            return letter
    if is_number(answer):
        return answer
    boxes = _outer_boxes(answer)
    if boxes:
        texts = re.findall(r"\\text{(.*?)}", boxes[-1])
        return str((texts or boxes)[-1]).strip()
    lower = answer.lower()
    for flag in _FLAGS:
        if flag in lower:
            return lower.split(flag)[-1].strip().split("\n")[0].split(".")[0]
    return ""


def _outer_boxes(text: str) -> list[str]:
    """Return the boxes that are in no other, up to the first that is not closed."""
    boxes: list[str] = []
    end = 0
    for start, held in _boxes(text):
        if start < end:
            continue
        if held is None:
            break
        boxes.append(held)
        end = start + len(_BOX) + len(held)
    return boxes
