"""Bytes that one process lends out to others by HTTP: behind a token, named by their SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import http.server
import secrets
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["Reference", "Server", "fetch", "name_of"]

SILENT_S = 20.0
"""Seconds without a byte after which fetching is given up."""
TRIES = 3
PAUSE_S = 1.0
"""Seconds before a fetch that found nobody is tried again."""


class Reference(NamedTuple):
    """What stands for bytes: where they are lent out, their SHA-256, and what opens the door there."""

    url: str
    name: str
    token: str


class Server(socketserver.ThreadingTCPServer):
    """Answers GET /NAME for those who know its token, from threads of its own. `close` it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, find: Callable[[str], bytes | None], host: str) -> None:
        """Lend out what `find` returns for a name, at this address of the machine."""
        super().__init__((host, 0), _Handler)
        self.find, self.token = find, secrets.token_urlsafe(32)
        self.url = f"http://{host}:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Lend out nothing more."""
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = SILENT_S

    def do_GET(self) -> None:
        """Send the bytes."""
        given = self.headers.get("Authorization", "").encode()
        allowed = hmac.compare_digest(given, f"Bearer {self.server.token}".encode())
        data = self.server.find(self.path[1:]) if allowed else None
        if data is None:
            self.send_error(404 if allowed else 403)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def fetch(reference: Reference) -> bytes:
    """Return the bytes that a reference stands for.

    Raises:
        OSError: nobody answers there, or they are not there; the message names the address.
    """
    for left in reversed(range(TRIES)):
        try:
            return _fetch_once(reference)
        except (OSError, http.client.HTTPException) as error:
            if not left or isinstance(error, FileNotFoundError):
                raise OSError(f"{reference.url}: {error or type(error).__name__}") from error
            time.sleep(PAUSE_S)
    raise AssertionError


def _fetch_once(reference: Reference) -> bytes:
    parts = urlsplit(reference.url)
    # No proxy of the environment: these are machines of one cluster.
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SILENT_S)
    try:
        headers = {"Authorization": f"Bearer {reference.token}"}
        connection.request("GET", f"/{reference.name}", headers=headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise FileNotFoundError(f"HTTP {reply.status} for {reference.name}")
        data = reply.read()
    finally:
        connection.close()
    if name_of(data) != reference.name:
        raise OSError(f"expected bytes with SHA-256 {reference.name}, got others")
    return data


def name_of(data: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()
