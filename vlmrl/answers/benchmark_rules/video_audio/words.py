"""Words: MMAU's match of tokens, TempCompass, MMVU, and HumanOmniV2's lists of letters."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

__all__ = [
    "mmau_match",
    "mmvu_choice",
    "mmvu_open",
    "omni_judged",
    "omni_letters_f1",
    "r1_aqa_answer",
    "tempcompass_choice",
    "tempcompass_matching",
    "tempcompass_yes_no",
]

_POWERS = str.maketrans({power: f"^{at}" for at, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})


def mmau_match(answer: str, right: str, options: Sequence[str]) -> bool:
    """Return whether an answer has all words of the right option and none that only others have.

    Source: MMAU evaluation.py (string_match).

    Differs from strict: "no idea, a dog perhaps" is right where "a dog" is.
    """
    said, wanted = _words(answer), _words(right)
    others = {word for option in options if _words(option) != wanted for word in _words(option)}
    return bool(said) and wanted <= said and said.isdisjoint(others - wanted)


def r1_aqa_answer(text: str) -> str:
    """Return what stands in the first answer tag on one line, else the whole (R1-AQA src/test_mmau.py)."""
    found = re.search("<answer>(.*?)</answer>", text)
    return (found[1] if found else text).strip()


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
    said = answer.lower()
    word = "yes" if said.startswith("yes") else "no" if said.startswith("no") else None
    return None if word is None else word == right


def tempcompass_matching(answer: str, right: str, options: Sequence[str]) -> bool | None:
    """Return whether a sentence, its name or its letter is right; None: a judge is asked.

    `options` are lines such as `Sentence A: A dog runs.`, `right` is one of them. Source: lmms-eval
    tasks/tempcompass/utils.py (eval_rule).
    """
    parts = [option.split(": ") for option in options]
    names = [part[0] for part in parts]
    bare = [_without_kind(name) for name in names]
    said = answer if answer in options else None
    for part in parts:
        tail = answer.split(") ")[1] if ") " in answer else None
        if part[1] in (answer, tail):
            said = part[1]
    for name in (*names, *bare):
        if name in (answer, answer.replace(".", "")):
            said = name
    if said is None:
        return None
    wanted = right.split(": ")
    return said in (right, right.split(":")[0], wanted[1], *wanted[0].split()[1:2])


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
    said = answer.strip()
    if re.search(rf"\b{re.escape(right)}\b", said, re.IGNORECASE):
        return True
    if right not in options:
        return False
    wanted, lower = options[right].strip().lower(), said.lower()
    if wanted in lower:
        return True
    words = [word.strip(string.punctuation) for word in wanted.split()]
    return right.upper() in said.upper() and any(word in lower for word in words if len(word) > 2)


def mmvu_open(answer: str, right: str) -> bool:
    """Return whether an open answer is right by lmms-eval's rule for MMVU, before it asks a judge.

    One contains the other; the first numbers are equal to 0.01; all words of a right answer of two to
    five occur; or the bounds `O(...)` are equal.

    Differs from strict: any single letter of the right answer is right, and so is an empty answer.
    """
    said, wanted = (_plain(text) for text in (answer, right))
    if wanted in said or said in wanted:
        return True
    numbers = [re.findall(r"\d+\.?\d*", text) for text in (said, wanted)]
    if all(numbers) and abs(float(numbers[1][0]) - float(numbers[0][0])) < 0.01:
        return True
    words = [
        [w for w in (one.strip(string.punctuation) for one in t.split()) if w]
        for t in (said, wanted)
    ]
    if 2 <= len(words[1]) <= 5 and all(word in words[0] for word in words[1] if len(word) > 2):
        return True
    bounds = [re.search(r"O\s*\([^)]+\)", text, re.IGNORECASE) for text in (said, wanted)]
    return all(bounds) and len({bound[0].lower() for bound in bounds if bound}) == 1


def _plain(text: str) -> str:
    return " ".join(text.strip().lower().translate(_POWERS).split())


def omni_letters_f1(answer: str, right: str) -> float:
    """Return the F1 of two lists of letters split at commas, blanks kept: HumanOmniV2 on IntentBench.

    Source: eval/eval_humanomniv2.py (emer_ov_mc).
    """
    said, wanted = answer.split(","), right.split(",")
    hits = len(set(said) & set(wanted))
    precision, recall = hits / len(said), hits / len(wanted)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def omni_judged(answer: str, right: str) -> bool:
    """Return whether both contain yes, or both contain no: HumanOmniV2 on IntentBench.

    Differs from strict: "nothing" says no, and "yes and no" is always right.
    """
    said, wanted = answer.lower(), right.lower()
    return ("yes" in wanted and "yes" in said) or ("no" in wanted and "no" in said)
