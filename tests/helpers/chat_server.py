"""Chat endpoints on the loopback that speak the real protocol."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from vlmrl.named_models.asked import PROBE

Script = Callable[[dict[str, Any]], Any]

# A process remembers what a model at a URL replied, and a port comes up again among some ten thousand:
# the servers of each test have a path of their own.
_PATHS = (f"/{number}/v1" for number in itertools.count())


class Server(http.server.ThreadingHTTPServer):
    """A real endpoint on the loopback whose behaviour each test scripts.

    The script returns the text of the judge's message, bytes for a raw body, an int for a status,
    or None after writing to the socket itself.
    """

    request_queue_size = 128  # many threads connect at once

    def __init__(self, script: Script, port: int = 0, path: str = "/v1") -> None:
        super().__init__(("127.0.0.1", port), Exchange)
        self.script, self.path = script, path
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.probed: Any = "OK"
        """What it says to who asks whether it is there, as a script would."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.path}"

    def kill(self) -> None:
        """Close the port: who asks from now on is refused. Not for a thread that answers."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gave up is what some tests want


class Exchange(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["messages"] == PROBE["messages"]:  # which no script is about
            return self._say(self.server.probed)
        self.server.requests.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        assert self.path == f"{self.server.path}/chat/completions"
        said = self.server.script(body)
        return said(self) if callable(said) else self._say(said)

    def _say(self, said: Any) -> None:
        if isinstance(said, int):
            self.send_response(said)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if isinstance(said, str):
            said = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


def reply_as_asked(body: dict[str, Any]) -> str:
    """Return the object that the rules ask for, each number the best one and each text an A."""
    rules = next(m["content"] for m in body["messages"] if m["role"] == "system")
    start = rules.index("nothing else: ") + len("nothing else: ")
    asked, _ = json.JSONDecoder().raw_decode(rules, start)
    return json.dumps(
        {key: {"number": 1, "first": said}.get(said, "A") for key, said in asked.items()}
    )


def hang_up(exchange: Exchange) -> None:
    """Close the connection without a reply."""
    exchange.connection.close()


Start = Callable[..., Server]


@contextlib.contextmanager
def chat_servers() -> Iterator[Start]:
    """Yield what starts a server by its script; all of them end with the context."""
    servers: list[Server] = []
    path = next(_PATHS)

    def start(script: Script, port: int = 0) -> Server:
        server = Server(script, port, path)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.kill()
