"""Chat turns of a row under our keys: `system`, `history`, `question` with its media, and the reply.

What layouts of chats share. A turn's media stand where its text has `<image>`, `<video>` or `<audio>`;
the row's lists of media belong to the marks of all turns in order, and to the first user turn where
no turn has a mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.data.cards.conversation import LISTS
from vlmrl.data.layouts.base import DataPlace
from vlmrl.errors import UserError

__all__ = ["has_turns", "read_turns"]

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""Roles as layouts call them -> as we call them."""

_MARK = re.compile(r"<(image|video|audio)>")


@dataclass
class _Turn:
    role: str
    text: str
    media: dict[str, list[Any]] = field(default_factory=dict)


def has_turns(place: DataPlace, key: str, role: str) -> bool:
    """Return whether the first row of a place has a list of turns under `key`, with a role each."""
    turns = place.head[0].get(key) if place.head else None
    return isinstance(turns, list) and any(
        isinstance(turn, Mapping) and role in turn for turn in turns
    )


def read_turns(
    turns: Any, media: Mapping[str, list[Any]], key: str, role: str = "role", text: str = "content"
) -> tuple[dict[str, Any], str | None]:
    """Return our keys of a list of turns, and the last assistant's text (None: a user has the last word).

    `media` maps image, video and audio to the row's own; `key` names the list in errors; `role` and
    `text` are the keys of a turn.

    Raises:
        UserError: a turn is of another form, there is no question, or marks and media differ in number.
    """
    if not isinstance(turns, list) or not turns:
        raise UserError(f"key {key!r}: expected a list of turns, got {turns!r:.60}")
    read = [_turn(turn, role, text, f"key {key!r}, turn {n}") for n, turn in enumerate(turns, 1)]
    system = [turn.text for turn in read if turn.role == "system"]
    talk = [turn for turn in read if turn.role != "system"]
    if len(system) > 1 or (system and read[0].role != "system"):
        raise UserError(f"key {key!r}: expected one system turn at the start, got {len(system)}")
    reply = talk.pop().text if talk and talk[-1].role == "assistant" else None
    if not talk or talk[-1].role != "user":
        raise UserError(f"key {key!r}: expected a user's turn as the last question, got none")
    _share_out(media, talk, key)
    question = talk.pop()
    history = [{"role": t.role, "content": t.text, **_lists(t)} for t in talk]
    ours: dict[str, Any] = {"question": question.text, **question.media}
    return {**ours, "system": system[0] if system else None, "history": history or None}, reply


def _turn(turn: Any, role: str, text: str, where: str) -> _Turn:
    if not isinstance(turn, Mapping) or turn.get(role) not in ROLES:
        said = turn.get(role) if isinstance(turn, Mapping) else turn
        raise UserError(
            f"{where}: expected {role!r} to be one of {', '.join(ROLES)}, got {said!r:.60}"
        )
    content = turn.get(text)
    if isinstance(content, list):
        return _parts(ROLES[turn[role]], content, where)
    if not isinstance(content, str):
        raise UserError(f"{where}: expected a text under {text!r}, got {content!r:.60}")
    return _Turn(ROLES[turn[role]], content)


def _parts(role: str, content: list[Any], where: str) -> _Turn:
    """Return a turn whose content is a list of parts, as chat APIs write it."""
    found = _Turn(role, "")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        kind = str(kind).removesuffix("_url")
        if kind == "text" and isinstance(part.get("text"), str):
            found.text += part["text"]
        elif kind in LISTS:
            found.text += f"<{kind}>"
            value = part.get(kind, part.get(f"{kind}_url"))
            value = value.get("url") if isinstance(value, Mapping) and "url" in value else value
            if value is not None:  # else it is one of the row's own
                found.media.setdefault(kind, []).append(value)
        else:
            raise UserError(
                f"{where}: expected a part of text, image, video or audio, got {part!r:.60}"
            )
    return found


def _share_out(media: Mapping[str, list[Any]], turns: list[_Turn], key: str) -> None:
    """Give the row's own media to the turns that have marks for them."""
    for kind, values in media.items():
        wanted = [_MARK.findall(t.text).count(kind) - len(t.media.get(kind, [])) for t in turns]
        if values and not any(wanted):
            first = next(n for n, turn in enumerate(turns) if turn.role == "user")
            wanted[first] = len(values)
            turns[first].text = f"<{kind}>" * len(values) + turns[first].text
        if sum(wanted) != len(values):
            raise UserError(
                f"key {key!r}: expected a <{kind}> for each {kind}, got {sum(wanted)} for {len(values)}"
            )
        left = iter(values)
        for turn, count in zip(turns, wanted, strict=True):
            if count > 0:
                turn.media[kind] = [*turn.media.get(kind, []), *(next(left) for _ in range(count))]


def _lists(turn: _Turn) -> dict[str, Any]:
    return {LISTS[kind]: values for kind, values in turn.media.items()}
