"""Verdicts on two answers: VL-RewardBench, Multimodal RewardBench."""

from __future__ import annotations

import re

_VERDICT = re.compile(
    r"(?:Overall Judgment|Therefore).*Answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better",
    re.IGNORECASE,
)
MAX_DIGITS = 100


def better_answer(answer: str) -> int | None:
    """Return the number of the better answer as lmms-eval reads it for VL-RewardBench.

    The last `Answer N is better` behind "Overall Judgment" or "Therefore", without line breaks and
    stars; None is left to a judge (tasks/vl_rewardbench/utils.py). A number of neither is wrong.

    Differs from strict: "Therefore I doubt that Answer 1 is better" says 1.
    """
    match = _VERDICT.search(answer.strip().replace("\n", "").replace("*", ""))
    return int(match[1][-MAX_DIGITS:]) if match else None


def bracketed_verdict(answer: str) -> str | None:
    """Return the letter of the verdict `[[A]]` or `[[B]]`: Multimodal RewardBench.

    Source: lmms-eval tasks/multimodal_rewardbench/utils.py. Differs from strict: of both, it is A.
    """
    return next((letter for letter in "AB" if f"[[{letter}]]" in answer), None)
