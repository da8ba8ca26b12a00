"""Calls of tools in a row, and what they returned: the turns of a demonstration before its answer.

[{"role": "assistant", "content": "<think>Too small.</think>",
  "tool_calls": [{"function": {"name": "crop", "arguments": {"bbox_2d": [0, 0, 28, 28]}}}]},
 {"role": "tool", "content": "<image>", "images": ["cut.png"]}]

A call may also be a message of its own (`function_call`, `tool_call`) or stand in the text between
`<tool_call>` and `</tool_call>`. What a row states is shown as it is; a call without it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmrl.data.row_forms import MEDIA_KEYS, place_media
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import DemoTurn, Media

CALLERS = ("assistant", "gpt")
"""Roles whose text may come with calls."""
CALLS = ("function_call", "tool_call")
"""Roles whose text is a call, or a list of calls, in JSON: ShareGPT's name and ms-swift's."""
TOOLS = ("tool", "tool_response", "function", "observation")
"""Roles whose text and media are what calls returned."""
_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name", *MEDIA_KEYS)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>\s*(.*?)\s*</tool_response>\s*", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def is_response(text: str) -> bool:
    """Return whether a user's text is what a tool returned, in the marks of Hermes and Qwen."""
    return _RESPONSE.fullmatch(text) is not None


def has_calls(message: Mapping[str, object]) -> bool:
    """Return whether a message, under `content` and `tool_calls`, calls a tool."""
    content = message.get("content")
    return bool(message.get("tool_calls")) or (
        isinstance(content, str) and _CALL.search(content) is not None
    )


def read_tool_turns(value: object, folder: str | Path) -> tuple[DemoTurn, ...]:
    """Return the turns of a list of messages, or of its JSON text; None means that there are none.

    Media stand where the text of a message has their marks, without marks first; relative paths start
    from `folder`. Places in arguments stay as they are written.

    Raises:
        UserError: a message is of another form; the error says which.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"turns: not valid JSON: {error}") from error
    if not value:
        return ()
    if not isinstance(value, list):
        raise UserError(f"turns: expected a list of messages, got {value!r:.60}")
    turns: list[DemoTurn] = []
    for number, message in enumerate(value, start=1):
        try:
            _add(turns, message, folder)
        except UserError as error:
            raise UserError(f"turns, message {number}: {error}") from error
    for number, turn in enumerate(turns, start=1):
        if not turn.name and turn.returned is None:
            raise UserError(f"turns: turn {number} calls nothing and is shown nothing")
    return tuple(turns)


def _add(turns: list[DemoTurn], message: object, folder: str | Path) -> None:
    """Append a message's turn, or put what the message states into the last one."""
    if not isinstance(message, Mapping):
        raise UserError(f"expected an object with role and content, got {message!r:.60}")
    if unknown := [key for key in message if key not in _KEYS]:
        raise UserError(f"expected the keys {', '.join(_KEYS)}, got {unknown[0]!r}")
    role, content = message.get("role"), message.get("content")
    content = "" if content is None else content
    if not isinstance(content, str):
        raise UserError(f"content: expected a text, got {content!r:.60}")
    if role in TOOLS or (role == "user" and is_response(content)):
        if not turns:
            raise UserError(f"role {role!r}: nothing was called before")
        parts = (*(turns[-1].returned or ()), *_parts(message, content, folder))
        turns[-1] = replace(turns[-1], returned=parts)
        return
    if role not in (*CALLERS, *CALLS):
        raise UserError(
            f"role: expected one of {', '.join((*CALLERS, *CALLS, *TOOLS))}, got {role!r:.60}"
        )
    if any(message.get(key) for key in MEDIA_KEYS):
        raise UserError(f"role {role!r}: expected no media, a model writes text")
    turn = _turn(role, content, message.get("tool_calls"))
    goes_on = role in CALLS and turns and turns[-1].returned is None
    if goes_on and not (turn.thought or turn.text):
        before = turns.pop()
        more = ((turn.name, turn.arguments), *turn.also)
        if before.name:
            turn = replace(before, also=(*before.also, *more))
        else:
            turn = replace(turn, thought=before.thought, text=before.text)
    turns.append(turn)


def _turn(role: str, content: str, calls: object) -> DemoTurn:
    """Return a turn as it is written; its calls are those in its text, then the ones beside it."""
    match = _THOUGHT.match(content)
    thought, text = (match[1].strip(), content[match.end() :]) if match else ("", content)
    if role in CALLS:
        stated: list[Any] = [text]
        text = ""
    else:
        stated, text = _CALL.findall(text), _CALL.sub("", text)
    if calls is not None and not isinstance(calls, list):
        raise UserError(f"tool_calls: expected a list, got {calls!r:.60}")
    read = [pair for call in (*stated, *(calls or ())) for pair in _calls(call)]
    (name, arguments), *also = read or [("", {})]
    return DemoTurn(name, arguments, thought, text.strip(), tuple(also))


def _calls(call: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names and arguments of a call, of a list of calls, or of the JSON text of either."""
    call = _json(call, "a call")
    if isinstance(call, list):
        return [pair for each in call for pair in _calls(each)]
    inside = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(inside, Mapping) or not isinstance(inside.get("name"), str):
        raise UserError(f"expected a call with name and arguments, got {inside!r:.60}")
    arguments = _json(inside.get("arguments") or {}, "arguments")
    if not isinstance(arguments, Mapping) or not inside["name"]:
        raise UserError(f"expected a name and an object of arguments, got {inside!r:.60}")
    return [(inside["name"], arguments)]


def _json(value: object, what: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what}: not valid JSON: {error}") from error


def _parts(message: Mapping[str, Any], content: str, folder: str | Path) -> tuple[str | Media, ...]:
    """Return what a message of a tool shows."""
    match = _RESPONSE.fullmatch(content)
    media: list[Media] = []
    for key, kind in MEDIA_KEYS.items():
        stated = message.get(key) or []
        listed = stated if isinstance(stated, list) else [stated]
        media += [reference(value, folder, kind) for value in listed]
    parts = place_media(match[1] if match else content, media)
    if not parts:
        raise UserError("content: the turn of a tool is empty")
    return parts
