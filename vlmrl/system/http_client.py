"""One request over HTTP, with JSON and a bearer token, that ends in time whatever the server does.

On the standard library, because httpx, requests and urllib3 bound the time between two bytes: a server that
drips would keep them for ever. Redirects are not followed, proxies of the environment not asked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOK_S = 3.0
"""Seconds between two looks whether the server lives."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What a server replied, whatever its status."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class NoReply(Exception):
    """No reply: the connection was refused or broke, or, if `late`, the time ran out."""

    def __init__(self, reason: str, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


def request(
    method: str,
    url: str,
    tree: object,
    token: str | None,
    seconds: float,
    max_bytes: int | None = None,
    look: Callable[[], None] | None = None,
) -> HttpReply:
    """Return the reply to a request with `tree` as JSON (None: without a body), within `seconds`.

    Of a reply longer than `max_bytes` one byte more is returned. `look` is called every `LOOK_S` seconds
    until the reply begins, and may raise to give up.

    Raises:
        NoReply: there is none.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    body = None if tree is None else json.dumps(tree).encode()
    end = time.monotonic() + seconds
    connection = kind(parts.hostname or "", parts.port, timeout=max(seconds, 0.001))
    late: threading.Timer | None = None
    try:
        connection.connect()
        # A socket's own time-out starts anew with every byte.
        late = threading.Timer(max(end - time.monotonic(), 0.0), _cut, (connection.sock,))
        late.start()
        connection.request(method, path, body, headers)
        if look is not None:
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            # Until the reply begins, or the connection is cut.
            while not poll.poll(1000 * LOOK_S) and time.monotonic() < end:
                look()
        response = connection.getresponse()
        data = response.read(None if max_bytes is None else max_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= end:
            raise NoReply(f"no reply within {seconds:.3g} s", late=True) from error
        raise NoReply(f"{type(error).__name__}: {error}") from error
    finally:
        if late:
            late.cancel()
        connection.close()
    if time.monotonic() >= end:  # what was read may have been cut
        raise NoReply(f"no reply within {seconds:.3g} s", late=True)
    return HttpReply(response.status, dict(response.headers), data)


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the connection may be closed already
        sock.shutdown(socket.SHUT_RDWR)
