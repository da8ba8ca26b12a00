"""Read an option, a yes or no, a refusal, or a list of names from an answer span.

Every reader returns what it read and a note that says why it read nothing: what cannot be read is "no
prediction", never an error. An answer that names several options picks none.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

from vlmrl.answers import literals, text

__all__ = ["REFUSALS", "declines", "letter_of", "read_choice", "read_names", "read_yes_no"]

REFUSALS = (
    "i don't know",
    "i do not know",
    "unanswerable",
    "cannot be determined",
    "not enough information",
)
"""What declines a question, as the whole answer."""
MAX_REFUSAL = 1000
"""Characters of an answer in which a refusal is looked for."""
_LETTER = re.compile(
    r"(?<![A-Za-z0-9_'’/])([A-Z])(?![A-Za-z0-9_'’/])(?!(?<=I) [a-z])"
)  # no pronoun
_AROUND = string.punctuation + string.whitespace
_OTHER_ALPHABET = re.compile(
    r"(?<!\w)[\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    r"\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c-\u041e\u0420-\u0423\u0425](?!\w)"
)
"""A Greek or Cyrillic capital that looks like one of ours, as a word of its own."""
_LEADING = re.compile(r"\s{0,9}\(?([A-Z])\)?[.:),]?\s{1,9}(\S.*)", re.DOTALL)
_YES_NO = re.compile(r"\b(yes|no)\b")
_NO_DOUBT = re.compile(r"\bno\s{1,9}(?:doubt|question|wonder|problem)\b")
_DENIAL = re.compile(
    r"\b(?:not|never|neither|nor|cannot|hardly|wrong|false|incorrect|untrue)\b|n't\b"
)
_DENIED = re.compile(
    r"\b(?:yes|no)\b\W{1,9}(?:is|was|would\s{1,9}be)\s{1,9}(?:not|wrong|false|incorrect|untrue)\b"
)
_WORDS = re.compile(r"\w+")
_ANNOUNCED = re.compile(r"\b(?:right|correct|best|final)\s{1,9}(?:answer|option|choice)\b")


def declines(answer: str, phrases: Sequence[str] = REFUSALS) -> bool:
    """Return whether a whole answer says that the question cannot be answered."""
    plain = [text.normalised(said[:MAX_REFUSAL].replace("’", "'")) for said in (answer, *phrases)]
    return plain[0] in plain[1:]


def letter_of(choice: str, options: Sequence[str] | None) -> str | None:
    """Return the letter of a right choice: a letter that is on offer, or an option's text; else None."""
    stated = choice.strip("() .")
    last = chr(ord("A") + len(options) - 1) if options else "Z"
    if stated in _capitals(last):
        return stated
    texts = [text.normalised(option) for option in options or ()]
    if text.normalised(choice) in texts:
        return chr(ord("A") + texts.index(text.normalised(choice)))
    return stated.upper() if stated.upper() in _capitals(last) else None


def read_choice(answer: str, options: Sequence[str] | None = None) -> tuple[str | None, str]:
    """Return the letter of the one option an answer picks (A for the first), and a note.

    It picks by a capital letter that is a word of its own (in lower case only if it is the whole
    answer), or by the option's whole text. A capital letter alone is a letter, even if it is also the
    text of another option. An answer that names several options, by letter or by text, picks none.
    """
    if len(answer) > literals.MAX_CHARS:
        return None, f"answer longer than {literals.MAX_CHARS} characters"
    last = chr(ord("A") + min(len(options), 26) - 1) if options else "Z"
    plain = text.normalised(answer)
    if (bare := unicodedata.normalize("NFKC", answer).strip(_AROUND)) in _capitals(last):
        return bare, ""
    if named := _named(answer, options or ()):
        return named, ""
    if len(plain) == 1 and "A" <= plain.upper() <= last:
        return plain.upper(), ""
    if (leading := _LEADING.match(answer)) and (named := _named(leading[2], options or ())):
        letter = leading[1]
        return (letter, "") if letter == named else (None, f"{letter} with the text of {named}")
    picked = {m[1] for m in _LETTER.finditer(answer) if m[1] <= last}
    if picked and (alike := _OTHER_ALPHABET.search(answer)):
        return None, f"{alike[0]} of another alphabet beside {', '.join(sorted(picked))}"
    if len(picked) != 1:
        return None, f"{len(picked)} different letters" if picked else "no option found"
    letter = picked.pop()
    if others := _mentioned(answer, options or ()) - {letter}:
        return None, f"{letter} with the text of {', '.join(sorted(others))}"
    return letter, ""


def _capitals(last: str) -> tuple[str, ...]:
    return tuple(chr(code) for code in range(ord("A"), ord(last) + 1))


def _mentioned(answer: str, options: Sequence[str]) -> set[str]:
    """Return the letters of the options whose text the answer contains, longest first."""
    said = f" {' '.join(_WORDS.findall(_ANNOUNCED.sub(' ', text.normalised(answer))))} "
    spelled = [
        (f" {' '.join(_WORDS.findall(text.normalised(option)))} ", chr(ord("A") + i))
        for i, option in enumerate(options[:26])
    ]
    found = set()
    for option, letter in sorted(spelled, key=lambda pair: len(pair[0]), reverse=True):
        is_letter = len(option) == 3 and option.strip().isalpha()
        if option.strip() and not is_letter and option in said:
            found.add(letter)
            said = said.replace(option, "  ")
    return found


def _named(said: str, options: Sequence[str]) -> str | None:
    """Return the letter of the one option with this text, verbatim or else normalised."""
    found = [i for i, option in enumerate(options[:26]) if option.strip() == said.strip()]
    if not found:
        plain = text.normalised(said)
        found = [i for i, option in enumerate(options[:26]) if text.normalised(option) == plain]
    return chr(ord("A") + found[0]) if len(found) == 1 else None


def read_yes_no(answer: str) -> tuple[bool | None, str]:
    """Return whether an answer says yes (True) or no (False), and a note.

    None if it says both or neither, or denies what it says ("not yes", "yes is wrong").
    """
    said = _NO_DOUBT.sub(" ", answer[: literals.MAX_CHARS].lower().replace("’", "'"))
    words = list(_YES_NO.finditer(said))
    found = {match[1] for match in words}
    if len(found) != 1:
        return None, "both yes and no" if found else "neither yes nor no"
    if _DENIAL.search(said, 0, words[0].start()) or _DENIED.search(said):
        return None, f"denies its {words[0][1]}"
    return found == {"yes"}, ""


def read_names(answer: str) -> tuple[list[str], str]:
    """Return the distinct names an answer lists, normalised, and a note.

    A JSON list of strings, or text split at commas, semicolons, bars and new lines.
    """
    if len(answer) > literals.MAX_CHARS:
        return [], f"answer longer than {literals.MAX_CHARS} characters"
    lists = [v for v in literals.values(answer) if isinstance(v, list)]
    if lists:
        parts = [name for name in lists[0] if isinstance(name, str)]
    else:
        parts = re.split(r"[,;|\n]", answer)
    found = list(dict.fromkeys(filter(None, map(text.normalised, parts))))
    return found, "" if found else "no name found in the answer"
