"""A request of OpenAI's chat API becomes a sample and a sampling; what cannot be honoured is refused.

Media are inside the request, as `data:` URIs or base64 text: a server that opened paths or URLs for
whoever asks would read this machine's files and network for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Media, MediaKind, Sample, Truth, Turn

__all__ = ["MAX_COMPLETIONS", "Question", "read_part", "read_request"]

MAX_COMPLETIONS = 64
"""Most completions of one request."""
MAX_TOKENS = 512
"""Length of a completion where a request does not say."""
REFUSED = ("tools", "functions", "stop", "logprobs", "logit_bias", "response_format", "audio")
"""Keys that would change the reply, and that this server does not know how to honour."""
MEDIA: dict[str, MediaKind] = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Types of content parts by the kind of medium that they hold."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks: the conversation, how to sample, and whether the reply is streamed."""

    sample: Sample
    sampling: Sampling
    stream: bool


def read_request(body: Any, rates: bool = False) -> Question:
    """Read the JSON body of `POST /v1/chat/completions`.

    `temperature` 0 is greedy; it is 1 where nothing is said, as OpenAI's. Without `seed` each request
    draws anew. The last turn is the user's; the assistant's for a model that `rates` it, and then the
    sample asks with that turn.

    Raises:
        UserError: a key that cannot be honoured, or a value of the wrong kind; the message names it.
    """
    if not isinstance(body, Mapping):
        raise UserError(f"expected a JSON object, got {type(body).__name__}")
    for key in REFUSED:
        if body.get(key) not in (None, False, [], {}, {"type": "text"}):
            raise UserError(f"{key}: not supported by this server")
    for key in ("presence_penalty", "frequency_penalty"):
        if body.get(key) not in (None, 0):
            raise UserError(f"{key}: expected 0, got {body[key]!r:.40}")
    tokens = body.get("max_completion_tokens", body.get("max_tokens"))
    temperature = _number(body, "temperature", 1.0, 0.0, 100.0)
    sampling = Sampling(
        n=_whole(body.get("n"), "n", 1, MAX_COMPLETIONS),
        max_tokens=_whole(tokens, "max_tokens", MAX_TOKENS, 2**20),
        temperature=temperature or 1.0,
        top_p=_number(body, "top_p", 1.0, 1e-6, 1.0),
        greedy=temperature == 0,
        seed=_whole(body.get("seed"), "seed", secrets.randbits(62), 2**63 - 1, least=0),
    )
    return Question(_sample(body.get("messages"), rates), sampling, body.get("stream") is True)


def _sample(messages: Any, rates: bool) -> Sample:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError("messages: expected a list of at least one message")
    system, turns = "", []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, Mapping):
            raise UserError(f"{where}: expected an object, got {message!r:.40}")
        role, parts = message.get("role"), _parts(message.get("content"), where)
        if role in ("system", "developer") and place == 0:
            if any(isinstance(part, Media) for part in parts):
                raise UserError(f"{where}: expected text in a message of the system")
            system = "".join(part for part in parts if isinstance(part, str))
        elif role in ("user", "assistant"):
            turns.append(Turn(role, parts))
        else:
            raise UserError(
                f"{where}.role: expected user or assistant (system only in front), got {role!r:.40}"
            )
    last_role = "assistant" if rates else "user"
    if not turns or turns[-1].role != last_role:
        found = turns[-1].role if turns else "none"
        raise UserError(f"messages: expected the last one to be of the {last_role}, got {found}")
    *history, last = turns
    return Sample(
        "request", "request", last.parts, Truth(), "none", system=system, history=tuple(history)
    )


def _parts(content: Any, where: str) -> tuple[str | Media, ...]:
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, Sequence) or not content:
        raise UserError(f"{where}.content: expected text or a list of parts, got {content!r:.40}")
    return tuple(read_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def read_part(part: Any, where: str) -> str | Media:
    """Read a part of a message's content: a text, or a medium that is inside the request.

    Raises:
        UserError: it is neither; `where` names it.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind not in MEDIA:
        known = ", ".join(("text", *MEDIA))
        raise UserError(f"{where}: expected a part of type {known}, got {part!r:.60}")
    held = part.get(kind)
    value = (
        held.get("data" if kind == "input_audio" else "url") if isinstance(held, Mapping) else held
    )
    try:
        if kind == "input_audio" and isinstance(value, str):
            value = f"data:audio;base64,{value}"
        medium = reference(value, kind=MEDIA[kind])
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if medium.data is None:
        raise UserError(f"{where}: expected a data: URI; this server opens no URLs and no files")
    return medium


def _whole(value: Any, key: str, default: int, most: int, least: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{key}: expected a whole number from {least} to {most}, got {value!r:.40}")
    return value


def _number(body: Mapping[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UserError(f"{key}: expected a number from {least:g} to {most:g}, got {value!r:.40}")
    return float(value)
