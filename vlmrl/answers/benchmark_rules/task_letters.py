"""Letters of multiple choice as single tasks find them: MMVP, VisuLogic, MMBench, ScienceQA and others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vlmrl.answers.benchmark_rules.letters import lmms_letter

__all__ = [
    "geometry_letter",
    "hr_bench_letter",
    "mmbench_letter",
    "mmvp_letter",
    "naturalbench_word",
    "science_letter",
    "tagged_letter",
    "visulogic_letter",
]

Pair = tuple[str, str]


def mmvp_letter(answer: str) -> str | None:
    """Find A or B as lmms-eval does for MMVP (tasks/mmvp/utils.py).

    Differs from strict: case does not count, and an A may end a word: "a cat" and "Panda " say A.
    """
    said = answer.strip()
    for pattern in _MMVP:
        if match := pattern.search(said):
            return match[1].upper()
    return said[0].upper() if said[:1] in ("a", "b", "A", "B") else None


def visulogic_letter(answer: str) -> str | None:
    """Find a letter of A to D as lmms-eval does for VisuLogic (tasks/visulogic/utils.py).

    The last in an answer tag, in a box, after "answer is" or "option", or in brackets; else the first
    character of an answer of at most three.
    """
    said = answer.strip()
    for pattern in _VISULOGIC:
        if found := pattern.findall(said):
            return str(found[-1]).upper()
    return (
        said[0].upper() if 0 < len(said) <= 3 and said[0].upper() in ("A", "B", "C", "D") else None
    )


def geometry_letter(answer: str, options: Sequence[str]) -> str | None:
    """Find a letter of A to D as lmms-eval does for Geometry3K (tasks/geometry3k/utils.py).

    The last after "answer:", before a full stop or a bracket, alone, or as a word, in either case; else
    the first option whose text occurs.

    Differs from strict: the article of "a triangle" says A.
    """
    said = answer.strip()
    for pattern in _GEOMETRY:
        if found := pattern.findall(said):
            return str(found[-1]).upper()
    held = [
        letter
        for letter, text in zip("ABCD", options, strict=False)
        if text.lower() in said.lower()
    ]
    return held[0] if held else None


def mmbench_letter(answer: str, options: Mapping[str, str], rest: bool = True) -> str | None:
    """Find a letter as lmms-eval does for MMBench (tasks/mmbench/mmbench_evals.py).

    `options` are the texts by letter. The only letter among the words (A not among more than three),
    bare or with one of several marks; else the only option whose text occurs. `rest` goes on with
    `lmms_letter`, as its static task does; without it a judge is asked.
    """
    words = answer.split()
    found: str | None = None
    if "Failed to obtain answer via API" not in answer:
        found = _only_letter(words)
    if found is None:
        lower = answer.lower()
        held = [letter for letter, text in options.items() if text.lower() in lower]
        found = held[0] if len(held) == 1 else None
    return lmms_letter(answer, sorted(options)) if found is None and rest else found


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
    said = answer.strip()
    return said[0] if len(said) >= 2 and said[0].isupper() and said[1] == "." else said


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
        found = [letter for letter in options if letter in words]
        if len(found) == 1:
            return found[0]
        if not found and "Z" in words:
            return "Z"
    lower = answer.lower()
    held = [letter for letter, text in options.items() if text.lower() in lower]
    return held[0] if len(held) == 1 else None


def naturalbench_word(answer: str, words: Pair) -> str | None:
    """Return which of two words comes first, in either case: lmms-eval on NaturalBench.

    Source: tasks/naturalbench/utils.py; `words` are yes and no, or A and B. Differs from strict: the
    article of "a red B" says A.
    """
    at = {word: match.start() for word in words if (match := _word(word).search(answer))}
    return min(at, key=lambda word: at[word]) if at else None


def tagged_letter(answer: str) -> str | None:
    """Return the word in the answer tag as Med-R1 does (src/eval_vqa); without tags, a bare word."""
    match = re.search(r"<answer>\s*(\w+)\s*</answer>", answer)
    if match is None and "<answer>" not in answer:
        match = re.fullmatch(r"\s*(\w+)\s*", answer)
    return match[1] if match else None


def _word(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{word}\b", re.IGNORECASE)


_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
_BLANKED = dict.fromkeys(map(ord, ".()[],:;!*#{}"), " ")
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
