"""Letters of multiple choice as tasks about videos and audio find them: MVBench, MMAU, WorldSense and others.

`letters` are the capital letters on offer, `options` the texts by letter; a rule returns a letter, or
None where the harness finds none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = [
    "long_video_letter",
    "mmau_letter",
    "mvbench_word",
    "omni_letter",
    "perception_letter",
    "videochat_letter",
    "worldsense_letter",
]

_DOTS_REMOVED = 32
"""MVBench's rule hands re.UNICODE, which is 32, to `sub` as its count."""
_MVBENCH_MARKS = (
    ";", "/", "[", "]", '"', "{", "}", "(", ")", "=", "+", "\\", "_", "-", ">", "<", "@", "`", ",",
    "?", "!",
)  # fmt: skip
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
    said = answer.replace("\n", " ").replace("\t", " ").strip()
    whole, grouped = said, re.search(r"\d,\d", said) is not None
    for mark in _MVBENCH_MARKS:
        beside = grouped or mark + " " in whole or " " + mark in whole
        said = said.replace(mark, "" if beside else " ")
    said = re.sub(r"\.(?!\d)", "", said, count=_DOTS_REMOVED)
    for mark in "'\")(":
        said = said.strip(mark)
    said = said.strip().lower()
    found = re.search(r"\b([a-e])\b", said)
    return found[1].upper() if found else said


def long_video_letter(answer: str) -> str | None:
    """Return the first capital letter of A to E, be it that of a word: LongVideoBench.

    Source: lmms-eval tasks/longvideobench/utils.py, which draws an option where there is none.

    Differs from strict: "Because of it, C" says B.
    """
    return _first(answer, (*_ANNOUNCED, "Best answer:", "Best option:"), "ABCDE")


def videochat_letter(answer: str) -> str | None:
    """Return the first capital letter of A to G, be it that of a word: VideoChat-R1.

    Source: src_eval/evaluate_gqa.py, which lacks a comma between its last two phrases.
    """
    return _first(answer, (*_ANNOUNCED, "Best answer:Best option:"), "ABCDEFG")


def _first(answer: str, phrases: Sequence[str], letters: str) -> str | None:
    said = answer.strip()
    for phrase in phrases:
        said = said.replace(phrase, "")
    found = re.search(f"[{letters}]", said)
    return found[0] if found else None


def perception_letter(answer: str) -> str | None:
    """Return the first capital letter of A to D that is a word: the Perception Test.

    Source: lmms-eval tasks/perceptiontest/val/utils.py.

    Differs from strict: the article of "A dog is B" says A.
    """
    found = re.search(r"\b([A-D])\b", answer.strip())
    return found[1] if found else None


def mmau_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Find a letter as lmms-eval does for MMAU (tasks/mmau/utils.py), which draws one where none is.

    The forms `(A)`, ` A ` and `A.` in this order; of several letters the last that stands between
    blanks, else the first on offer.
    """
    said = answer
    for mark in ",.!?;:'":
        said = said.strip(mark)
    return _form(f" {said} ", letters, ("({})", " {} ", "{}."), " {} ")


def omni_letter(answer: str, letters: Sequence[str]) -> str | None:
    """Find a letter as lmms-eval does for OmniBench (tasks/omni_bench/utils.py).

    The forms `(A)`, `A ` and `A.` in this order; of several the last.

    Differs from strict: the last letter of "UNESCO B" says B, and so does that of "DVB ".
    """
    said = f" {answer.strip()} "
    if any(f"({letter})" in said for letter in letters):
        return _form(said, letters, ("({})",), "({})")
    return _form(said, letters, ("{} ", "{}."), " {} ")


def _form(said: str, letters: Sequence[str], forms: Sequence[str], place: str) -> str | None:
    """Return the letter in the first form that occurs; of several the one whose `place` is last."""
    for form in forms:
        if found := [letter for letter in letters if form.format(letter) in said]:
            return max(found, key=lambda letter: said.rfind(place.format(letter)))
    return None


def worldsense_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Find a letter as lmms-eval does for WorldSense (tasks/worldsense/utils.py), which says A for none.

    A letter anywhere, be it inside a word; of several the last in brackets, else the first on offer;
    without any, in more than five words, the last option whose text occurs.

    Differs from strict: "Definitely B" says B, since D and B occur and B is offered first.
    """
    said = answer
    for mark in ",.!?;:'":
        said = said.strip(mark)
    said = f" {said} "
    if found := [letter for letter in options if letter in said]:
        return max(found, key=lambda letter: said.rfind(f"({letter})"))
    lower = said.lower()
    if len(said.split()) > 5:
        found = [letter for letter, text in options.items() if text.lower() in lower]
    return max(found, key=lambda one: lower.rfind(options[one].lower())) if found else None
