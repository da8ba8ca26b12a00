"""Letters of multiple choice, as harnesses find them in free text.

`letters` are the capital letters on offer, in order; a rule returns one of them, or None where the
harness finds none (lmms-eval draws one then, or counts it as wrong; VLMEvalKit asks a judge).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

__all__ = [
    "blink_letter",
    "cv_bench_letter",
    "first_letter",
    "lmms_letter",
    "mmmu_letter",
    "option_start",
    "vlmeval_letter",
    "vstar_letter",
]

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
    said = answer.strip()
    for mark in ",.!?;:'\"":
        said = said.strip(mark)
    padded, core, lower = f" {said} ", f" {said} ".strip(), f" {said} ".lower()
    found: list[tuple[int, int, str]] = []
    for form, rank in (("({})", 6), ("{}.", 5), ("{}:", 4), ("{})", 3), ("{} ", 2)):
        places = ((padded.rfind(form.format(letter)), letter) for letter in letters)
        found += [(rank, place, letter) for place, letter in places if place >= 0]
    for phrase in _PHRASES:
        if (at := lower.find(phrase)) >= 0:
            places = ((padded.find(letter, at + len(phrase)), letter) for letter in letters)
            found += [(7, place, letter) for place, letter in places if place >= 0]
    for letter in letters:
        if core.startswith(letter) and not core[1:2].isalpha():
            found.append((10, 0, letter))
        if core.endswith(letter) and not core[-2:-1].isalpha():
            found.append((9, len(padded) - 1, letter))
    if not found:
        found = [(0, padded.rfind(letter), letter) for letter in letters if letter in padded]
    return max(found, key=lambda one: one[:2])[2] if found else None


def mmmu_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for MMMU (tasks/_task_utils/mmmu_mcq_utils.py).

    `options` are the texts by letter. The forms `(A)`, `A `, `A.` are tried in this order, then, in
    an answer of more than five words, the options' texts; of several the last counts.

    Differs from strict: the last letter A of "A dog" is an answer; where none is found the harness
    draws one.
    """
    said = answer
    for mark in ",.!?;:'":
        said = said.strip(mark)
    said = f" {said} "
    for form, place in (("({})", "({})"), ("{} ", " {} "), ("{}.", " {} ")):
        if found := [letter for letter in options if form.format(letter) in said]:
            return max(found, key=lambda letter: said.rfind(place.format(letter)))
    if len(said.split()) > 5:
        lower = said.lower()
        if found := [letter for letter, text in options.items() if text.lower() in lower]:
            return max(found, key=lambda letter: lower.rfind(options[letter].lower()))
    return None


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
    lower = answer.lower()
    if len(lower) > 2 * sum(map(len, options.values())):
        return None
    found = [letter for letter, text in options.items() if text.lower() in lower]
    return found[0] if len(found) == 1 else None


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
    said, offered = answer.strip(), "".join(letters)
    line = said.split("\n", 1)[0].strip()
    terse = re.match(rf"\(?([{offered}])\)?[\.\s:,)]*$", line, re.IGNORECASE)
    if len(line) <= 4 and terse:
        return terse[1].upper()
    stated = rf"answers?(?:\s+is)?\s*[:\-]?\s*\(?([{offered}])\)?(?![A-Za-z])"
    if found := re.findall(stated, said, re.IGNORECASE):
        return str(found[-1]).upper()
    if found := re.findall(rf"\(([{offered}])\)", said):
        return str(found[-1])
    start = re.match(rf"[\(\s]*([{offered}])", said, re.IGNORECASE)
    return start[1].upper() if start else None


def vstar_letter(answer: str) -> str | None:
    """Find a letter of A to D as lmms-eval does for V* (tasks/vstar_bench/utils.py).

    Differs from strict: case does not count, so "Based on" says B.
    """
    said = answer.strip().upper()
    for pattern in _VSTAR:
        if match := pattern.search(said):
            return match[1].upper()
    found = re.findall("[A-D]", said)
    return found[0] if len(found) == 1 else None


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
