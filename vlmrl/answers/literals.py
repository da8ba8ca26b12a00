"""Read JSON and Python-style literals out of a model's text, in linear time, never running it.

JSON first, then a small tolerant reader that also knows single quotes, tuples, trailing commas,
None, True and False. Nesting, length and digits are limited; what is beyond a limit is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["MAX_CHARS", "values"]

MAX_CHARS = 32_768
"""Longest answer that is read as structure."""
MAX_TOLERANT = 16_384
"""Longest answer in which structure other than JSON is read: that takes longer."""

MAX_DEPTH = 16
SAFE_BRACKETS = 200
"""So many brackets cannot exhaust the json module's stack, however they are nested."""
MAX_FAILURES = 64
"""Brackets that open nothing readable, before the rest of the text is given up."""

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
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
    found, at, failures = [], 0, 0
    while failures < MAX_FAILURES and (opener := _OPENER.search(text, at)):
        start = opener.start()
        try:
            value, at = _value_at(text, start, shallow)
            found.append(value)
        except _Unreadable as stop:
            failures += 1
            at = max(stop.at, start + 1)  # never read the same stretch twice
    return found


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
            at = _expect(text, at, ":")
            token, kind, at = _token(text, at)
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


def _expect(text: str, at: int, mark: str) -> int:
    token, kind, end = _token(text, at)
    if kind != "mark" or token != mark:
        raise _Unreadable(at)
    return end


def _token(text: str, at: int) -> tuple[Any, str, int]:
    """Return the next token's value, its kind and its end."""
    match = _TOKEN.match(text, at)
    if match is None or match.lastgroup is None:
        raise _Unreadable(at)
    kind, raw = match.lastgroup, match[match.lastgroup]
    if kind == "number":
        return (float(raw) if any(c in raw for c in ".eE") else int(raw)), kind, match.end()
    if kind == "word":
        return _WORDS[raw], kind, match.end()
    if kind in ("single", "double"):
        return _ESCAPE.sub(r"\1", raw), kind, match.end()
    return raw, kind, match.end()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


_JSON = json.JSONDecoder(parse_constant=_refuse, strict=False)
