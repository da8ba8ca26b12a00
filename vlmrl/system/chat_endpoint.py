"""One chat request to an OpenAI-compatible endpoint, bounded in time and size."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Invalid", "Reply", "Unavailable", "chat"]

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
    """No reply: refused, broken, late, or an error status. `retry_after` is in seconds, if stated."""

    def __init__(self, reason: str, again: bool = True, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.retry_after = retry_after


class Invalid(Exception):
    """A reply that is not what was asked for."""


def chat(url: str, body: Mapping[str, Any], key: str | None, seconds: float) -> Reply:
    """Return the first choice of what `POST {url}/chat/completions` returns within `seconds`.

    `key` is sent as a bearer token, if given. Redirects are not followed.

    Raises:
        Unavailable: no connection, no reply in time, or an error status.
        Invalid: a reply that is no chat completion.
    """
    status, headers, data = _post(url, json.dumps(body).encode(), key, seconds)
    if status != 200:
        after = headers.get("Retry-After", "")
        raise Unavailable(
            f"HTTP {status}",
            again=status >= 500 or status in RETRYABLE,
            retry_after=float(after) if after.isdecimal() else None,
        )
    try:
        found = json.loads(data)
        text = found["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise Invalid(f"no chat completion: {data[:80]!r}") from error
    if not isinstance(text, str):
        raise Invalid(f"a chat completion without text: {text!r:.80}")
    usage = found.get("usage")
    return Reply(text, _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens"))


def _tokens(usage: Any, key: str) -> int:
    count = usage.get(key) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def _post(
    url: str, body: bytes, key: str | None, seconds: float
) -> tuple[int, Mapping[str, str], bytes]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    end = time.monotonic() + seconds
    connection = kind(parts.hostname or "", parts.port, timeout=max(seconds, 0.001))
    late: threading.Timer | None = None
    try:
        connection.connect()
        # A socket's own time-out starts anew with every byte: a server that drips would never end.
        late = threading.Timer(max(end - time.monotonic(), 0.0), _cut, (connection.sock,))
        late.start()
        connection.request("POST", f"{parts.path.rstrip('/')}/chat/completions", body, headers)
        reply = connection.getresponse()
        data = reply.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= end:
            raise Unavailable(f"no reply within {seconds:.3g} s") from error
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    finally:
        if late:
            late.cancel()
        connection.close()
    if time.monotonic() >= end:
        raise Unavailable(f"no reply within {seconds:.3g} s")
    if len(data) > MAX_BYTES:
        raise Invalid(f"a reply of more than {MAX_BYTES} bytes")
    return reply.status, dict(reply.headers), data


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the connection may be closed already
        sock.shutdown(socket.SHUT_RDWR)
