"""Yes or no: POPE, MME."""

from __future__ import annotations

from typing import Literal

from vlmrl.answers.benchmark_rules.free_text import strip_punctuation

__all__ = ["Said", "yes_no_exact", "yes_no_prefix", "yes_no_words"]

Said = Literal["yes", "no"]


def yes_no_exact(answer: str) -> Said | None:
    """Read the answer as lmms-eval does for POPE (tasks/pope/utils.py): it is `yes` or `no`.

    Stricter than most: "Yes." is neither.
    """
    said = answer.lower().strip()
    return "yes" if said == "yes" else "no" if said == "no" else None


def yes_no_prefix(answer: str) -> Said | None:
    """Read the answer as lmms-eval does for MME (tasks/mme/utils.py): its first four characters.

    Full stops do not count, and a single `y` or `n` does.

    Differs from strict: "nose" says no, "eyes" says yes.
    """
    said = answer.lower().strip().replace(".", "")
    if len(said) == 1:
        return "yes" if said == "y" else "no" if said == "n" else None
    return "yes" if "yes" in said[:4] else "no" if "no" in said[:4] else None


def yes_no_words(answer: str) -> Said | None:
    """Read the answer as VLMEvalKit does (dataset/utils/yorn.py): one of the two words occurs.

    Differs from strict: "not yes" says yes; "there is no cat, so yes" says neither.
    """
    words = strip_punctuation(answer.lower(), "vlmevalkit").split()
    if ("yes" in words) == ("no" in words):
        return None
    return "yes" if "yes" in words else "no"
