"""Chat turns of a row under our keys: `system`, `history`, `question` with its media, and the reply.

What layouts of chats share. A turn's media stand where its text has `<image>`, `<video>` or `<audio>`;
the row's lists of media belong to the marks of all turns in order, and to the first user turn where
no turn has a mark. Turns that call tools after the question, and what the tools returned, are `turns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlmrl.answers import parsing
from vlmrl.data import multiple_choice
from vlmrl.data.layout import DataPlace
from vlmrl.data.row_forms import LISTS
from vlmrl.data.tool_turns import CALLS, TOOLS, has_calls, is_response
from vlmrl.errors import UserError

# --------------------------------------------------------------------------------------------------
# The truth that a written reply states, under our keys: boxes, a number, an option's letter or a text.


_ANSWER = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>", re.DOTALL)
_FENCE = re.compile(r"\s*```(?:json)?\s*(?P<inside>.*?)\s*```\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")


def read_reply(reply: object, question: str, key: str) -> dict[str, Any]:
    """Return what a reply says is true, as keys of a typed row; `key` names it in errors.

    Only what stands in `<answer>` counts where there is one, and what stands in `<think>` is the
    `thought`. A JSON or Python list of boxes (`bbox_2d`, `bbox` or `box`, with `label`), or four bare
    numbers, are `boxes`; `None` and `[]` say that there is nothing. Otherwise a letter of options that
    the question lists is a `choice`; everything else is an `answer`, and a `number` too if it reads
    as one.

    Raises:
        UserError: the reply is empty or no text, or its letter is no option of the question.
    """
    if isinstance(reply, int | float) and not isinstance(reply, bool):
        reply = f"{reply:g}" if isinstance(reply, float) else str(reply)
    if not isinstance(reply, str) or not reply.strip():
        raise UserError(f"key {key!r}: expected an answer, got {reply!r:.60}")
    thought = _THOUGHT.search(reply)
    match = _ANSWER.search(reply)
    text = match["answer"] if match else _THOUGHT.sub("", reply)
    if fenced := _FENCE.fullmatch(text):
        text = fenced["inside"]
    text = text.strip()
    if not text:
        raise UserError(f"key {key!r}: expected an answer, got an empty one")
    ours = {"thought": thought["thought"].strip()} if thought else {}
    return {**ours, **_truth(text, question, key)}


def _truth(text: str, question: str, key: str) -> dict[str, Any]:
    if (boxes := _boxes(text)) is not None:
        labels = [label for _, label in boxes]
        stated: dict[str, Any] = {"boxes": [box for box, _ in boxes]}
        return stated | ({"box_labels": labels} if any(labels) else {})
    if parsing.says_nothing(text):
        return {"boxes": [], "none": True}
    if options := multiple_choice.asked(question):
        try:
            truth = multiple_choice.choice_truth(options, text)
        except UserError as error:
            raise UserError(f"key {key!r}: {error}") from error
        stated = {"choice": truth.choice, "options": list(options)}
        return stated | {"answer": list(truth.text or ())}
    if _NUMBER.fullmatch(text):
        return {"answer": text, "number": float(text.replace(",", ""))}
    return {"answer": text}


def _boxes(text: str) -> list[tuple[Any, str | None]] | None:
    """Return (box, label) of each box where the whole text is a list of boxes; None: it is none."""
    if not text.startswith(("[", "{")):
        return None
    values = parsing.values(text)
    if len(values) != 1 or text[-1] not in "]}":
        return None
    (value,) = values
    if _is_box(value):
        return [(value, None)]
    items = value if isinstance(value, list) else [value]
    boxes = [_box(item) for item in items]
    return None if not boxes or None in boxes else [each for each in boxes if each is not None]


def _box(item: object) -> tuple[Any, str | None] | None:
    if _is_box(item):
        return item, None
    if not isinstance(item, Mapping):
        return None
    for key in parsing.BOX_KEYS:
        if _is_box(item.get(key)):
            label = item.get("label")
            return item[key], None if label is None else str(label)
    return None


def _is_box(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(parsing.is_number, value))


# --------------------------------------------------------------------------------------------------
# The media columns of a row: one value or a list, under the names that published layouts use.


def media_columns(row: Mapping[str, object]) -> dict[str, list[Any]]:
    """Return the media of a row by kind: image, video, audio; a kind that it has none of is left out."""
    columns = {}
    for kind, several in LISTS.items():
        values = [row[name] for name in (several, kind) if row.get(name) not in (None, "", [])]
        if values:
            columns[kind] = values[0] if isinstance(values[0], list) else [values[0]]
    return columns


# --------------------------------------------------------------------------------------------------


ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    **dict.fromkeys(CALLS, "assistant"),
    **dict.fromkeys(TOOLS, "tool"),
}
"""Roles as layouts call them -> as we call them."""

_MARK = re.compile(r"<(image|video|audio)>")


@dataclass
class _Turn:
    role: str
    text: str
    media: dict[str, list[Any]] = field(default_factory=dict)
    stated: str = ""
    """The role as the layout calls it."""
    calls: object = None
    """Calls beside the text."""

    @property
    def replies(self) -> bool:
        """Return whether its text may be the answer: a call in the text, where that is the end, is one."""
        return self.role == "assistant" and self.stated not in CALLS and not self.calls

    @property
    def acts(self) -> bool:
        """Return whether it calls a tool."""
        return self.stated in CALLS or has_calls({"content": self.text, "tool_calls": self.calls})

    def write(self, role: str) -> dict[str, Any]:
        """Return it under our keys, in a role."""
        media = {LISTS[kind]: values for kind, values in self.media.items()}
        calls = {"tool_calls": self.calls} if self.calls else {}
        return {"role": role, "content": self.text, **media, **calls}


def has_turns(place: DataPlace, key: str, role: str) -> bool:
    """Return whether the first row of a place has a list of turns under `key`, with a role each."""
    turns = place.head[0].get(key) if place.head else None
    return isinstance(turns, list) and any(
        isinstance(turn, Mapping) and role in turn for turn in turns
    )


def read_turns(
    turns: object,
    media: Mapping[str, list[Any]],
    key: str,
    role: str = "role",
    text: str = "content",
) -> tuple[dict[str, Any], str | None]:
    """Return our keys of a list of turns, and the last assistant's text (None: another has the last word).

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
    reply = talk.pop().text if talk and talk[-1].replies else None
    asked = max((n for n, turn in enumerate(talk) if turn.role == "user"), default=None)
    played = [] if asked is None else talk[asked + 1 :]
    if asked is None or (played and not any(t.role == "tool" or t.acts for t in played)):
        raise UserError(f"key {key!r}: expected a user's turn as the last question, got none")
    if any(turn.role == "tool" or turn.acts for turn in talk[:asked]):
        raise UserError(f"key {key!r}: expected calls of tools after the last question alone")
    _share_out(media, talk, key)
    question, history = talk[asked], [turn.write(turn.role) for turn in talk[:asked]]
    ours: dict[str, Any] = {"question": question.text, **question.media}
    if played:
        ours["turns"] = [
            turn.write("tool" if turn.role == "tool" else turn.stated) for turn in played
        ]
    return {**ours, "system": system[0] if system else None, "history": history or None}, reply


def _turn(turn: object, role: str, text: str, where: str) -> _Turn:
    if not isinstance(turn, Mapping) or turn.get(role) not in ROLES:
        stated = turn.get(role) if isinstance(turn, Mapping) else turn
        raise UserError(
            f"{where}: expected {role!r} to be one of {', '.join(ROLES)}, got {stated!r:.60}"
        )
    ours, content, calls = ROLES[turn[role]], turn.get(text), turn.get("tool_calls")
    if isinstance(content, list):
        read = _parts(ours, content, where)
    elif isinstance(content, str):
        read = _Turn(ours, content)
    elif content is None and calls:
        read = _Turn(ours, "")
    else:
        raise UserError(f"{where}: expected a text under {text!r}, got {content!r:.60}")
    if ours == "user" and is_response(read.text):
        read.role = "tool"
    return replace(read, stated=str(turn[role]), calls=calls)


def _parts(role: str, content: list[Any], where: str) -> _Turn:
    """Return a turn whose content is a list of parts, as chat APIs write it."""
    merged = _Turn(role, "")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        kind = str(kind).removesuffix("_url")
        if kind == "text" and isinstance(part.get("text"), str):
            merged.text += part["text"]
        elif kind in LISTS:
            merged.text += f"<{kind}>"
            value = part.get(kind, part.get(f"{kind}_url"))
            value = value.get("url") if isinstance(value, Mapping) and "url" in value else value
            if value is not None:  # else it is one of the row's own
                merged.media.setdefault(kind, []).append(value)
        else:
            raise UserError(
                f"{where}: expected a part of text, image, video or audio, got {part!r:.60}"
            )
    return merged


def _share_out(media: Mapping[str, list[Any]], turns: list[_Turn], key: str) -> None:
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
