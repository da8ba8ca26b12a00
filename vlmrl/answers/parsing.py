"""Read boxes, points, spans, numbers, choices and JSON from an answer span.

Every reader returns what it read and a note that says why it read nothing (or less than stood
there): what cannot be read is "no prediction", never an error. Numbers are ASCII; bool, nan, inf,
1e999 and integers beyond 20 digits are refused before any geometry. Time is linear in the length of
the answer, and an answer too long to be one is refused.
"""

from __future__ import annotations

import json
import math
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from vlmrl.answers import claims, geometry, text
from vlmrl.schema import Box, Frame, Point, Span

# --------------------------------------------------------------------------------------------------
# Read JSON and Python-style literals out of a model's text, in linear time, never running it.
#
# JSON first, then a small tolerant reader that also knows single quotes, tuples, trailing commas,
# None, True and False. Nesting, length and digits are limited; what is beyond a limit is refused.


MAX_CHARS = 32_768
"""Longest answer that is read as structure."""
MAX_TOLERANT = 16_384
"""Longest answer in which structure other than JSON is read: that takes longer."""

MAX_DEPTH = 16
SAFE_BRACKETS = 200
"""So many brackets cannot exhaust the json module's stack, however they are nested."""
MAX_FAILURES = 64
"""Brackets that open nothing readable, before the rest of the text is given up."""

_LITERAL_VALUES = {"true": True, "false": False, "null": None, "none": None}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_OPENER = re.compile(r"[\[({]")
_BRACKET = re.compile(r"[\[\]{}]")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<mark>[\[\](){},:])
    | "(?P<double>(?:[^"\\]|\\.){0,1000})"
    | '(?P<single>(?:[^'\\]|\\.|'(?!\s{0,9}[,:\]})])){0,1000})'(?=\s{0,9}[,:\]})])
    | (?P<number>[-+]?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?(?![0-9A-Za-z_.]))
    | (?P<word>true|True|false|False|null|None)\b
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class _Unreadable(Exception):
    """Raised at the place in the text where reading stops."""

    def __init__(self, at: int) -> None:
        self.at = at


def values(text: str) -> list[Any]:
    """Return every list, tuple (as a list) and dict in a text, outermost only, in order.

    Whatever stands between them is skipped: prose, a code fence, an unclosed bracket. Numbers come
    as int or float and may be infinite (1e999); booleans and None come as they are.

    Raises:
        ValueError: the text is longer than MAX_CHARS.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"longer than {MAX_CHARS} characters")
    shallow = _is_shallow(text)
    readings, at, failures = [], 0, 0
    while failures < MAX_FAILURES and (opener := _OPENER.search(text, at)):
        start = opener.start()
        try:
            value, at = _value_at(text, start, shallow)
            readings.append(value)
        except _Unreadable as stop:
            failures += 1
            at = max(stop.at, start + 1)  # never read the same stretch twice
    return readings


def _is_shallow(text: str) -> bool:
    """Return whether brackets are nested so little that the json module cannot run out of stack."""
    if text.count("[") + text.count("{") <= SAFE_BRACKETS:
        return True
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth = depth + 1 if bracket.group() in "[{" else max(0, depth - 1)
        if depth > MAX_DEPTH:
            return False
    return True


def _value_at(text: str, start: int, shallow: bool) -> tuple[Any, int]:
    """Return the value that opens at `start`, and its end."""
    if shallow and text[start] != "(":
        try:
            return _JSON.raw_decode(text, start)
        except ValueError:  # JSONDecodeError, a refused constant, an integer of over 4300 digits
            pass
    if len(text) > MAX_TOLERANT:
        raise _Unreadable(start)
    return _sequence(text, start + 1, text[start], 1)


def _sequence(text: str, at: int, opener: str, depth: int) -> tuple[Any, int]:
    """Return the list or dict whose opening bracket is just before `at`, and its end."""
    if depth > MAX_DEPTH:
        raise _Unreadable(at)
    closer, items, keys = _CLOSERS[opener], [], []
    while True:
        token, kind, at = _token(text, at)
        if kind == "mark" and token == closer:
            break
        if opener == "{":
            if kind not in ("single", "double"):
                raise _Unreadable(at)
            keys.append(token)
            token, kind, end = _token(text, at)
            if kind != "mark" or token != ":":
                raise _Unreadable(at)
            token, kind, at = _token(text, end)
        if kind == "mark":
            if token not in _CLOSERS:
                raise _Unreadable(at)
            token, at = _sequence(text, at, token, depth + 1)
        items.append(token)
        token, kind, at = _token(text, at)
        if kind == "mark" and token == closer:
            break
        if kind != "mark" or token != ",":
            raise _Unreadable(at)
    return (dict(zip(keys, items, strict=True)) if opener == "{" else items), at


def _token(text: str, at: int) -> tuple[Any, str, int]:
    """Return the next token's value, its kind and its end."""
    match = _TOKEN.match(text, at)
    if match is None or match.lastgroup is None:
        raise _Unreadable(at)
    kind, raw = match.lastgroup, match[match.lastgroup]
    if kind == "number":
        return (float(raw) if any(c in raw for c in ".eE") else int(raw)), kind, match.end()
    if kind == "word":
        return _LITERAL_VALUES[raw.lower()], kind, match.end()
    if kind in ("single", "double"):
        return _ESCAPE.sub(r"\1", raw), kind, match.end()
    return raw, kind, match.end()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


_JSON = json.JSONDecoder(parse_constant=_refuse, strict=False)


# --------------------------------------------------------------------------------------------------
# Read an option, a yes or no, a refusal, or a list of names from an answer span.
#
# Every reader returns what it read and a note that says why it read nothing: what cannot be read is "no
# prediction", never an error. An answer that names several options picks none.


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
    r"(?<![A-Za-z0-9_'’/&@#\u0370-\u052f])(?<!\w-)(?<![A-Za-z]\.)([A-Z])(?![A-Za-z0-9_'’/&+#\u0370-\u052f]|-\w|\.[A-Z](?!\w))"
    r"(?!(?<=I) [a-z])"
)  # no pronoun
_SMALL = re.compile(r"(?<![\w'’/.-])([b-hj-z]|a(?=\W*$|\s+(?:or|and)\b|[,/)|]))(?![\w'’-]|\.\w)")
"""A small letter that may be an option; "a" is an article, "i" a pronoun."""
_PICKED = re.compile(
    r"(?:^|[^\w\s'’]\s{0,9}|\n\s{0,9}|[^\x00-\x7f]\s{0,9}"
    r"|\b(?:answer|option|choice|letter|label(?:l?ed)?|mark(?:ed|er)?|ch[oe]ose|chosen|pick(?:ed)?"
    r"|select(?:ed)?|is|are|be|was|say|think|believe|conclude|with|as|for|to|therefore|thus|so|hence"
    r"|then|correct|right|final|best|namely|definitely|surely|certainly|clearly|obviously|absolutely"
    r"|indeed|simply|just|image|figure|picture|photo|panel|video|frame|view|scene"
    r"|object|item|point|box|region|part|place|position|line|curve|circle|graph|chart|diagram|path"
    r"|route|person|candidate|statement|caption|sentence|clip|event|case|column|row|description|scenario|it['’]s|that['’]s|ist|antwort|es|respuesta|opción|est|réponse|ответ|the|and)\s{1,9})"
    rf"{claims.VALUE}"
    r"(?!(?:(?<=^.)|(?<=\bthe\s.))\s{1,9}(?!(?:is|was|because|since|as|the|it|with|for|which|where|shows?|matches|has"
    r"|definitely|surely|certainly|clearly|obviously|absolutely|indeed|fits|best|or|and|if|not|maybe|perhaps|probably|possibly)\b)[a-z])",
    re.MULTILINE | re.IGNORECASE,
)
"""The letter where an answer announces it; "B vitamins" and "vitamin B" do not."""
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
    r"\b(?:not|never|neither|nor|cannot|hardly|wrong|false|incorrect|untrue|except|excluding"
    r"|(?:anything|all)\s{1,9}but|(?:other|rather)\s{1,9}than)\b|n't\b"
)
_DENIED = re.compile(
    r"\b(?:yes|no)\b\W{1,9}(?:is|was|would\s{1,9}be)\s{1,9}(?:not|wrong|false|incorrect|untrue)\b"
)
_GRADE = re.compile(rf"{claims.VALUE}(?:[+#]|[-−–]\W*$)")
"""A letter with a sign makes a grade or a name of its own: `B+`, `C#`."""
_WORDS = re.compile(r"\w+")
_NO_NAME = re.compile(r"(?:no|not|without)\s(.+)", re.DOTALL)
_ANNOUNCED = re.compile(r"\b(?:right|correct|best|final)\s{1,9}(?:answer|option|choice)\b")


def declines(answer: str, phrases: Sequence[str] = REFUSALS) -> bool:
    """Return whether a whole answer says that the question cannot be answered."""
    plain = [
        text.normalised(phrase[:MAX_REFUSAL].replace("’", "'")) for phrase in (answer, *phrases)
    ]
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
    text of another option. An answer that names several options, by letter or by text, picks none; nor
    does one that denies its letter, leaves it open, or has it in a name ("vitamin B").
    """
    if len(answer) > MAX_CHARS:
        return None, f"answer longer than {MAX_CHARS} characters"
    last = chr(ord("A") + min(len(options), 26) - 1) if options else "Z"
    plain = text.normalised(answer)
    if (bare := unicodedata.normalize("NFKC", answer).strip(_AROUND)) in _capitals(last):
        return _unless_doubted(bare, _wrapped(answer))
    if named := _named(answer, options or ()):
        return _unless_doubted(named, _wrapped(answer), answer, options)
    if len(plain) == 1 and "A" <= plain.upper() <= last:
        return _unless_doubted(plain.upper(), _wrapped(answer))
    if (leading := _LEADING.match(answer)) and (named := _named(leading[2], options or ())):
        letter = leading[1]
        if letter != named:
            return None, f"{letter} with the text of {named}"
        return _unless_doubted(letter, _wrapped(leading[2]), leading[2], options)
    picked = {m[1] for m in _LETTER.finditer(answer) if m[1] <= last}
    if picked and (alike := _OTHER_ALPHABET.search(answer)):
        return None, f"{alike[0]} of another alphabet beside {', '.join(sorted(picked))}"
    if len(picked) != 1:
        return None, f"{len(picked)} different letters" if picked else "no option found"
    letter = picked.pop()
    if others := _mentioned(answer, options or ()) - {letter}:
        return None, f"{letter} with the text of {', '.join(sorted(others))}"
    return _read_announced(letter, answer, options, last)


def _read_announced(
    letter: str, answer: str, options: Sequence[str] | None, last: str
) -> tuple[str | None, str]:
    """Return the one capital letter of an answer if the answer says that it is its choice."""
    own = options[ord(letter) - ord("A")].strip() if options else ""
    if len(own) > 1:
        answer = re.sub(rf"(?<!\w){re.escape(own)}(?!\w)", " ", answer, flags=re.IGNORECASE)
    if {m[1].upper() for m in _SMALL.finditer(answer) if m[1].upper() <= last} - {letter}:
        return None, f"{letter} with other letters"
    statement = _in_place_of(letter, answer)
    if not _PICKED.search(statement):
        return None, f"{letter} is in a name"
    for beyond in {m[1] for m in _LETTER.finditer(answer)} - {letter}:
        if _PICKED.search(_in_place_of(beyond, answer)):
            return None, f"{letter} and {beyond}"
    return _unless_doubted(letter, statement)


def _in_place_of(letter: str, answer: str) -> str:
    """Return an answer with `claims.VALUE` wherever the capital letter stands alone."""
    return _LETTER.sub(lambda match: claims.VALUE if match[1] == letter else match[0], answer)


def _wrapped(answer: str) -> str:
    """Return what is around an answer: all but its words, in whose place is `VALUE`."""
    plain = unicodedata.normalize("NFKC", answer)
    return plain.replace(plain.strip(_AROUND), claims.VALUE, 1)


def _unless_doubted(
    letter: str, statement: str, stated: str = "", options: Sequence[str] | None = None
) -> tuple[str | None, str]:
    """Return a letter, unless its statement takes it back; a text that is verbatim an option's does not."""
    if stated and any(stated.strip() == option.strip() for option in options or ()):
        return letter, ""
    if not stated and _GRADE.search(statement):
        return None, f"{letter} is in a name"
    why = claims.doubt(statement)
    return (None, why) if why else (letter, "")


def _capitals(last: str) -> tuple[str, ...]:
    return tuple(chr(code) for code in range(ord("A"), ord(last) + 1))


def _mentioned(answer: str, options: Sequence[str]) -> set[str]:
    """Return the letters of the options whose text the answer contains, longest first."""
    words = f" {' '.join(_WORDS.findall(_ANNOUNCED.sub(' ', text.normalised(answer))))} "
    spelled = [
        (f" {' '.join(_WORDS.findall(text.normalised(option)))} ", chr(ord("A") + i))
        for i, option in enumerate(options[:26])
    ]
    letters = set()
    for option, letter in sorted(spelled, key=lambda pair: len(pair[0]), reverse=True):
        is_letter = len(option) == 3 and option.strip().isalpha()
        if option.strip() and not is_letter and option in words:
            letters.add(letter)
            words = words.replace(option, "  ")
    return letters


def _named(statement: str, options: Sequence[str]) -> str | None:
    """Return the letter of the one option with this text, verbatim or else normalised."""
    matches = [i for i, option in enumerate(options[:26]) if option.strip() == statement.strip()]
    if not matches:
        plain = text.normalised(statement)
        matches = [i for i, option in enumerate(options[:26]) if text.normalised(option) == plain]
    return chr(ord("A") + matches[0]) if len(matches) == 1 else None


def read_yes_no(answer: str) -> tuple[bool | None, str]:
    """Return whether an answer says yes (True) or no (False), and a note.

    None if it says both or neither, denies what it says ("not yes", "yes is wrong") or leaves it open
    ("perhaps yes").
    """
    statement = _NO_DOUBT.sub(" ", answer[:MAX_CHARS].lower().replace("’", "'"))
    words = list(_YES_NO.finditer(statement))
    verdicts = {match[1] for match in words}
    if len(verdicts) != 1:
        return None, "both yes and no" if verdicts else "neither yes nor no"
    if _DENIAL.search(statement, 0, words[0].start()) or _DENIED.search(statement):
        return None, f"denies its {words[0][1]}"
    if why := claims.hedge(_YES_NO.sub(claims.VALUE, statement)):
        return None, why
    return verdicts == {"yes"}, ""


def read_names(answer: str) -> tuple[list[str], str]:
    """Return the distinct names an answer lists, as `list_names` reads them, and a note."""
    names, note = list_names(answer)
    return list(dict.fromkeys(names)), note


def list_names(answer: str) -> tuple[list[str], str]:
    """Return the names an answer lists in its order, normalised, repeated ones too, and a note.

    One JSON list of strings, or of whole numbers, with nothing but words that announce it before it, or text
    split at commas, semicolons, bars and new lines. Several lists name nothing, nor does one that takes a
    name back (`edema, no edema`) or leaves it open (`edema?`).
    """
    if len(answer) > MAX_CHARS:
        return [], f"answer longer than {MAX_CHARS} characters"
    lists = [v for v in values(answer) if isinstance(v, list)]
    if len(lists) > 1:
        return [], f"{len(lists)} lists"
    parts = lists[0] if lists else re.split(r"[,;|\n]", answer)
    if all(type(part) is int for part in parts):
        parts = list(map(str, parts))
    before, after = answer[: answer.find("[")], answer[answer.rfind("]") + 1 :]
    if lists and _WORDS.search(after):
        return [], "words after the list"
    if not all(isinstance(part, str) for part in parts):
        return [], "a list of other things than names"
    if why := claims.doubt(f"{before if lists else ''}{claims.VALUE}") or _doubted_name(parts):
        return [], why
    names = list(filter(None, map(text.normalised, parts)))
    denied = next((n for n in names if (m := _NO_NAME.match(n)) and m[1] in names), None)
    if denied is not None:
        return [], f"{denied!r} beside the name"
    return names, "" if names else "no name found in the answer"


def _doubted_name(parts: Sequence[str]) -> str:
    """Return why one of the listed names is left open or struck out; its words are its own."""
    for part in filter(None, map(str.strip, parts)):
        if claims.takes_back(part):
            return f"{part!r} beside names"
        if why := claims.doubt(_wrapped(part)):
            return why
    return ""


# --------------------------------------------------------------------------------------------------


MAX_ITEMS = 1000
"""Most boxes, points or spans that one answer may list."""

BOX_KEYS = ("bbox_2d", "bbox", "box", "Position", "position")
POINT_KEYS = ("point_2d", "point", "position", "coordinate", "coordinates", "click")
SCORE_KEYS = ("confidence", "Confidence", "score")
TIME_KEYS = ("time", "timestamp", "t")
MAX_MAGNITUDE = 1e9
"""Largest number that can be a coordinate or a time."""

_NOTHING = frozenset({"[]", "{}", "none", "null", "nothing", "no object", "no objects"})
_N = r"[-+]?[0-9]{1,9}(?:\.[0-9]{1,12})?"
_PLAIN_BOX = re.compile(
    rf'\s*\{{"bbox_2d":\s?\[({_N}),\s?({_N}),\s?({_N}),\s?({_N})\]\}}\s*', re.ASCII
)
_QWEN_BOX = re.compile(
    r"(?:<\|object_ref_start\|>([^<]{0,1000})<\|object_ref_end\|>\s{0,9})?"
    rf"<\|box_start\|>\s{{0,9}}\(({_N}),\s?({_N})\),\s?\(({_N}),\s?({_N})\)\s{{0,9}}<\|box_end\|>"
)
_NAMED_POINT = re.compile(
    rf"\bx\s{{0,3}}=\s{{0,3}}({_N})\s{{0,3}},\s{{0,3}}y\s{{0,3}}=\s{{0,3}}({_N})"
)
_TIME = r"(?:[0-9]{1,3}:)?[0-9]{1,3}:[0-9]{2}(?:\.[0-9]{1,9})?|[0-9]{1,9}(?:\.[0-9]{1,9})?"
_UNIT = r"\s{0,9}(?:s|sec|secs|second|seconds)?\s{0,9}"
_SPAN = re.compile(
    rf"(?<![0-9.:+-])({_TIME}){_UNIT}"
    rf"(?:to|and|until|[-–—~])\s{{0,9}}({_TIME})(?![0-9.:]*[0-9:])",
    re.IGNORECASE,
)
# Which two of the three are meant? Policies come to write such answers where they are paid.
_CHAIN = re.compile(rf"(?:(?:{_TIME}){_UNIT}(?:to|until|[-–—~])\s{{0,9}}){{2}}[0-9]", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_.,])([-+−]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,20})"
    r"(?:\.[0-9]{1,20})?|[-+−]?\.[0-9]{1,20})(?:[eE]([-+]?[0-9]{1,3}))?(?![0-9_]|,[0-9]|\.[0-9])"
    r"(?!(?:st|nd|rd|th)\b)(\s?%)?"
)
_TOO_MANY_DIGITS = re.compile(r"[0-9]{21}")
_WORD = re.compile(r"[A-Za-z]+")

Item = TypeVar("Item")


def says_nothing(answer: str) -> bool:
    """Return whether an answer says outright that there is nothing: `[]`, `none`, `null`, `no objects`."""
    if len(answer) > 64:
        return False
    bare = answer.strip().removeprefix("```json").strip("` \n")
    return text.normalised(bare) in _NOTHING


# -------------------------------------------------------------------------------------- geometry


def boxes(answer: str, frame: Frame) -> tuple[list[Box], str]:
    """Return the boxes an answer lists, unit square, in its order, and a note.

    Spellings: JSON or Python list of dicts (`bbox_2d`, `bbox`, `box`, `Position`; `label`;
    `confidence` or `score`), one such dict, bare lists of four numbers, `(x1,y1),(x2,y2)`, Qwen's
    `<|box_start|>` form; fenced, or with prose around.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    if plain := _PLAIN_BOX.fullmatch(answer):
        a, b, c, d = plain.groups()
        unit = geometry.to_unit(float(a), float(b), float(c), float(d), frame)
        box = geometry.clean_box(*unit)
        return ([box], "") if box else ([], "1 box without area inside the media")

    def make(item: Any) -> Box | None:
        (x1, y1, x2, y2), label, score = item
        return geometry.clean_box(*geometry.to_unit(x1, y1, x2, y2, frame), label, score)

    return collect(answer, _box_items, make, "box")


def points(answer: str, frame: Frame) -> tuple[list[Point], str]:
    """Return the points an answer lists, unit square, and a note; a box means its centre.

    Spellings: dicts with `point_2d`, `point`, `position`, `coordinate` or `x` and `y`; bare
    pairs `[x, y]` or `(x, y)`; `x=.., y=..`; every spelling of a box.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """

    def make(item: Any) -> Point | None:
        numbers, label, _ = item
        if len(numbers) == 2:
            return geometry.point(numbers[0], numbers[1], frame, label)
        box = geometry.box(numbers, frame, label)
        return geometry.centre(box) if box else None

    return collect(answer, _point_items, make, "point")


def pointed_boxes(answer: str, frame: Frame) -> tuple[list[tuple[Box, Point]], str]:
    """Return the boxes that an answer lists, each with the point of the same object, and a note.

    Spelling: a JSON list of `{"bbox_2d": [x1, y1, x2, y2], "point_2d": [x, y]}`, or one of them.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """

    def make(item: dict[str, Any]) -> tuple[Box, Point] | None:
        box_numbers = next(_from_value(item, BOX_KEYS, (4,)), None)
        point_numbers = next(_from_value(item, POINT_KEYS[:2], (2,)), None)
        if box_numbers is None or point_numbers is None:
            return None
        box = geometry.box(box_numbers[0], frame)
        x, y = point_numbers[0]
        point = geometry.point(x, y, frame)
        return (box, point) if box and point else None

    def items(text: str) -> Iterator[dict[str, Any]]:
        for value in values(text):
            listed = value if isinstance(value, list) else [value]
            yield from (item for item in listed if isinstance(item, dict))

    return collect(answer, items, make, "box with a point", "without a box or a point in the media")


def spans(answer: str, frame: Frame) -> tuple[list[Span], str]:
    """Return the spans of time an answer lists, seconds, clipped to the duration, and a note.

    Spellings: `5 to 10`, `5s - 10s`, `00:05–00:10`, `5 and 10`; JSON or Python pairs; dicts with
    `start` and `end`, and a `label` where they are events. A chain (`5 to 10 to 12`) is no span.
    """
    return collect(answer, _span_items, lambda i: geometry.span(i[0], i[1], frame, i[2]), "span")


def track(answer: str, frame: Frame) -> tuple[list[tuple[float | None, Box | None]], str]:
    """Return a track's boxes with their times (seconds, None where none is given), and a note.

    Spellings: a list of `{"time": s, "bbox_2d": [...]}`, or bare boxes in order of time. A box
    without area keeps its place, as None.

    Raises:
        ValueError: the frame lacks the size that its space needs.
    """
    if len(answer) > MAX_CHARS:
        return [], f"answer longer than {MAX_CHARS} characters"
    entries: list[tuple[float | None, Box | None]] = []
    for value in _dicts_and_boxes(values(answer)):
        item = next(_from_value(value, BOX_KEYS, (4,)), None)
        if item is None:
            continue
        times = [value[key] for key in TIME_KEYS if isinstance(value, dict) and key in value]
        time = float(times[0]) if times and is_number(times[0]) else None
        entries.append((time, geometry.box(item[0], frame)))
        if len(entries) > MAX_ITEMS:
            return [], f"more than {MAX_ITEMS} boxes"
    return entries, "" if entries else "no box found in the answer"


def collect(
    answer: str,
    items: Callable[[str], Iterator[Any]],
    make: Callable[[Any], Item | None],
    name: str,
    lost: str = "outside the media or without extent",
) -> tuple[list[Item], str]:
    """Apply `make` to the items read from an answer and count those that it cannot make: `lost`."""
    if len(answer) > MAX_CHARS:
        return [], f"answer longer than {MAX_CHARS} characters"
    kept: list[Item] = []
    dropped = 0
    for item in items(answer):
        if len(kept) + dropped == MAX_ITEMS:
            return [], f"more than {MAX_ITEMS} items"
        made = make(item)
        if made is None:
            dropped += 1
        else:
            kept.append(made)
    if dropped:
        return kept, f"{dropped} of {len(kept) + dropped} {lost}"
    return kept, "" if kept else f"no {name} found in the answer"


_Numbers = tuple[float, ...]


def _box_items(answer: str) -> Iterator[tuple[_Numbers, str | None, float | None]]:
    if "<|box_start|>" in answer:
        for match in _QWEN_BOX.finditer(answer):
            label = match[1].strip() if match[1] else None
            yield tuple(float(match[i]) for i in range(2, 6)), label, None
        return
    yield from _from_value(values(answer), BOX_KEYS, (4,))


def _point_items(answer: str) -> Iterator[tuple[_Numbers, str | None, float | None]]:
    if "<|box_start|>" in answer:
        yield from _box_items(answer)
        return
    items = list(_from_value(values(answer), POINT_KEYS + BOX_KEYS, (2, 4)))
    yield from items or (
        ((float(match[1]), float(match[2])), None, None) for match in _NAMED_POINT.finditer(answer)
    )


def _from_value(
    value: object, keys: Sequence[str], sizes: tuple[int, ...]
) -> Iterator[tuple[_Numbers, str | None, float | None]]:
    """(numbers, label, score) of everything in a value that is a place; the rest is passed over."""
    if isinstance(value, dict):
        numbers = next((value[key] for key in keys if key in value), None)
        if numbers is None and 2 in sizes and "x" in value and "y" in value:
            numbers = [value["x"], value["y"]]
        if isinstance(numbers, list) and len(numbers) in sizes and all(map(is_number, numbers)):
            label = value.get("label")
            score: Any = next((value[key] for key in SCORE_KEYS if key in value), None)
            yield (
                tuple(float(n) for n in numbers),
                label if isinstance(label, str) else None,
                float(score) if is_number(score) and 0 <= score <= 1 else None,
            )
    elif isinstance(value, list):
        if len(value) in sizes and all(map(is_number, value)):
            yield tuple(float(n) for n in value), None, None
        elif 2 not in sizes and value and all(map(_is_pair, value)):
            for first, second in zip(value[::2], value[1::2], strict=False):
                yield (*map(float, first), *map(float, second)), None, None
        else:
            for part in value:
                yield from _from_value(part, keys, sizes)


def _dicts_and_boxes(values: list[Any]) -> Iterator[Any]:
    """Yield the dicts and bare boxes in nested lists, in order."""
    for value in values:
        if isinstance(value, list) and not (len(value) == 4 and all(map(is_number, value))):
            yield from _dicts_and_boxes(value)
        else:
            yield value


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def is_number(value: Any) -> bool:
    """Return whether this is a finite int or float of sensible size; a bool never is."""
    return type(value) in (int, float) and -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE


def _span_items(answer: str) -> Iterator[tuple[float, float, str | None]]:
    pairs = list(_pairs(values(answer)))
    yield from pairs
    if not pairs and not _CHAIN.search(answer):
        for match in _SPAN.finditer(answer):
            yield _seconds(match[1]), _seconds(match[2]), None


def _pairs(value: object) -> Iterator[tuple[float, float, str | None]]:
    """Yield every (start, end, label) in a value; only a dict has a label."""
    label = None
    if isinstance(value, dict) and "start" in value and "end" in value:
        label = value["label"] if isinstance(value.get("label"), str) else None
        value = [value["start"], value["end"]]
    if not isinstance(value, list):
        return
    times = [_as_seconds(v) for v in value] if len(value) == 2 else []
    if len(times) == 2 and times[0] is not None and times[1] is not None:
        yield times[0], times[1], label
    else:
        for part in value:
            yield from _pairs(part)


def _as_seconds(value: Any) -> float | None:
    if isinstance(value, str):
        return _seconds(value) if re.fullmatch(_TIME, value) else None
    return float(value) if is_number(value) else None


def _seconds(time: str) -> float:
    """`01:02:03.5`, `02:03` or `3.5` in seconds."""
    total = 0.0
    for part in time.split(":"):
        total = 60 * total + float(part)
    return total


# ---------------------------------------------------------------------------- numbers and words


def number(answer: str, percent: bool = False) -> tuple[float | None, str]:
    """Return the one number an answer states, and a note.

    Digits with thousands separators, a sign, an exponent, a unit after it; words up to 999,999. An
    answer with several different numbers states none: listing them all must not pay. Neither does
    one that denies its number, leaves it open or makes another one of it (`7 million`, `7²`). A
    percent sign is passed over, or divides by 100 when `percent` is set.
    """
    if len(answer) > MAX_CHARS:
        return None, f"answer longer than {MAX_CHARS} characters"
    if _TOO_MANY_DIGITS.search(answer):
        return None, "a number of more than 20 digits"
    numbers: set[float] = set()

    def take(match: re.Match[str]) -> str:
        digits, exponent, sign = match.groups()
        plain = digits.replace(",", "").replace("−", "-")
        value = float(f"{plain}e{exponent}" if exponent else plain)
        numbers.add(value / 100 if sign and percent else value)
        return claims.VALUE

    statement = take_words(_NUMBER.sub(take, answer), numbers)
    if not numbers:
        return None, "no number found in the answer"
    if len(numbers) > 1:
        return None, f"{len(numbers)} different numbers"
    if why := claims.changes(statement) or claims.doubt(statement):
        return None, why
    value = numbers.pop()
    return (value, "") if math.isfinite(value) else (None, "a number that is not finite")


def take_words(answer: str, numbers: set[float]) -> str:
    """Add the numbers that an answer spells; return it with `claims.VALUE` in their places."""
    matches = list(_WORD.finditer(answer))
    words = [match[0].lower() for match in matches]
    parts, at, end = [], 0, 0
    while at < len(words):
        spelled = text.word_number(words[at : at + 12])
        if spelled:
            numbers.add(float(spelled[0]))
            parts += [answer[end : matches[at].start()], claims.VALUE]
            end = matches[at + spelled[1] - 1].end()
        at += spelled[1] if spelled else 1
    return "".join([*parts, answer[end:]])


def fields(answer: str) -> tuple[dict[str, Any] | None, str]:
    """Return the one JSON object in an answer, and a note; several objects are none."""
    if len(answer) > MAX_CHARS:
        return None, f"answer longer than {MAX_CHARS} characters"
    objects = [v for v in values(answer) if isinstance(v, dict)]
    if not objects:
        return None, "no JSON object found in the answer"
    return (objects[0], "") if len(objects) == 1 else (None, f"{len(objects)} JSON objects")
