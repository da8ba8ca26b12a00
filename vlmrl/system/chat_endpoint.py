"""One chat request to an OpenAI-compatible endpoint, bounded in time and size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from vlmrl.system import http_client
from vlmrl.system.http_client import NoReply

MAX_BYTES = 1_000_000
"""A longer reply is no chat completion."""
RETRYABLE = (408, 409, 425, 429)
"""Statuses below 500 after which asking again may help."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of a chat completion, and the tokens of prompt and text as the endpoint counts them.

    Tokens are 0 where the endpoint does not say.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Unavailable(Exception):
    """No reply: refused, broken, late, or an error `status` (0: none came).

    `retry_after` is in seconds, if stated.
    """

    def __init__(
        self, reason: str, again: bool = True, retry_after: float | None = None, status: int = 0
    ) -> None:
        super().__init__(reason)
        self.again = again
        self.retry_after = retry_after
        self.status = status


class Invalid(Exception):
    """A reply that is not what was asked for."""


class NoText(Invalid):
    """A chat completion without any text."""


def chat(url: str, body: Mapping[str, object], key: str | None, seconds: float) -> Reply:
    """Return the first choice of what `POST {url}/chat/completions` returns within `seconds`.

    `key` is sent as a bearer token, if given. Redirects are not followed.

    Raises:
        Unavailable: no connection, no reply in time, or an error status.
        Invalid: a reply that is no chat completion.
    """
    data = post(f"{url.rstrip('/')}/chat/completions", body, key, seconds)
    try:
        tree = json.loads(data)
        text = tree["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise Invalid(f"no chat completion: {data[:80]!r}") from error
    if not isinstance(text, str):
        raise NoText(f"a chat completion without text: {text!r:.80}")
    usage = tree.get("usage")
    return Reply(text, _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens"))


def post(url: str, body: Mapping[str, object], key: str | None, seconds: float) -> bytes:
    """Return the body of the reply to a POST of JSON within `seconds`; redirects are not followed.

    Raises:
        Unavailable: no connection, no reply in time, or an error status.
        Invalid: a reply of more than MAX_BYTES.
    """
    try:
        reply = http_client.request("POST", url, body, key, seconds, MAX_BYTES)
    except NoReply as error:
        raise Unavailable(str(error)) from error
    if len(reply.data) > MAX_BYTES:
        raise Invalid(f"a reply of more than {MAX_BYTES} bytes")
    if reply.status != 200:
        after = reply.headers.get("Retry-After", "")
        raise Unavailable(
            f"HTTP {reply.status}",
            again=reply.status >= 500 or reply.status in RETRYABLE,
            retry_after=float(after) if after.isdecimal() else None,
            status=reply.status,
        )
    return reply.data


def _tokens(usage: object, key: str) -> int:
    count = usage.get(key) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0
