"""The turns before a question, as rows state them: under the keys `system` and `history`.

{"system": "You are brief.",
 "history": [{"role": "user", "content": "<image> What is this?", "images": ["a.jpg"]},
             {"role": "assistant", "content": "A cat."}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Media, MediaKind, Turn

__all__ = ["LISTS", "MEDIA_KEYS", "place_media", "read_history", "read_system"]

MEDIA_KEYS: dict[str, MediaKind] = {"images": "image", "videos": "video", "audios": "audio"}
"""Keys of a turn for its media, with their kind."""
LISTS: dict[str, str] = {kind: key for key, kind in MEDIA_KEYS.items()}
"""Kind of media -> its key in a turn."""

_MARK = re.compile(r"<(image|video|audio)>")


def read_system(value: Any) -> str:
    """Return the text of a system turn; None means that there is none.

    Raises:
        UserError: it is no text.
    """
    if value is not None and not isinstance(value, str):
        raise UserError(f"system: expected a text, got {value!r:.60}")
    return value or ""


def read_history(value: Any, folder: str | Path) -> tuple[Turn, ...]:
    """Return the turns of a history: a list, or its JSON text; None means that there is none.

    A turn has a `role` (user or assistant), its text under `content`, and its `images`, `videos` and
    `audios`; relative paths start from `folder`. A turn's media stand where its text has the marks
    `<image>`, `<video>` and `<audio>`; without marks they come first.

    Raises:
        UserError: a turn is of another form; the message says which.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"history: not valid JSON: {error}") from error
    if not value:
        return ()
    if not isinstance(value, list):
        raise UserError(f"history: expected a list of turns, got {value!r:.60}")
    turns = []
    for number, turn in enumerate(value, start=1):
        try:
            turns.append(_turn(turn, folder))
        except UserError as error:
            raise UserError(f"history, turn {number}: {error}") from error
    return tuple(turns)


def _turn(turn: Any, folder: str | Path) -> Turn:
    if not isinstance(turn, Mapping):
        raise UserError(f"expected an object with role and content, got {turn!r:.60}")
    known = ("role", "content", *MEDIA_KEYS)
    if unknown := [key for key in turn if key not in known]:
        raise UserError(f"expected the keys {', '.join(known)}, got {unknown[0]!r}")
    role, content = turn.get("role"), turn.get("content")
    if role != "user" and role != "assistant":
        where = "; a system turn stands under the key `system`" if role == "system" else ""
        raise UserError(f"role: expected user or assistant, got {role!r:.60}{where}")
    if not isinstance(content, str):
        raise UserError(f"content: expected a text, got {content!r:.60}")
    media: list[Media] = []
    for key, kind in MEDIA_KEYS.items():
        found = turn.get(key) or []
        media += [
            reference(v, folder, kind) for v in (found if isinstance(found, list) else [found])
        ]
    parts = place_media(content, media)
    if not parts:
        raise UserError("content: the turn is empty")
    return Turn(role, parts)


def place_media(text: str, media: Sequence[Media]) -> tuple[str | Media, ...]:
    """Return text and media as parts: media where the text has their marks, without marks first.

    Blank text between marks is left out; each kind's media take its marks in order.

    Raises:
        UserError: the numbers of marks and media of a kind differ.
    """
    marks = _MARK.findall(text)
    if not marks:
        return (*media, text.strip()) if text.strip() else tuple(media)
    for kind in MEDIA_KEYS.values():
        there = sum(medium.kind == kind for medium in media)
        if marks.count(kind) != there:
            raise UserError(
                f"expected a mark for each medium, got {marks.count(kind)} <{kind}> for {there}"
            )
    left = {kind: iter([m for m in media if m.kind == kind]) for kind in MEDIA_KEYS.values()}
    parts: list[str | Media] = []
    for number, piece in enumerate(_MARK.split(text)):  # text and kinds in turn
        if number % 2:
            parts.append(next(left[piece]))  # type: ignore[index]  # the mark's kind
        elif piece.strip():
            parts.append(piece.strip())
    return tuple(parts)
