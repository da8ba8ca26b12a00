"""A proxy in front of a real server that breaks chosen answers: faults no server makes on demand."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Reply = tuple[int, bytes]
Rule = Callable[[Reply], Reply | None]


class FaultyProxy:
    """Forwards everything; `breaks(path, rule, times)` lets `rule` alter that many answers.

    A rule that returns None drops the connection.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._rules: list[tuple[str, Rule]] = []
        self._lock = threading.Lock()
        self.seen: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy._serve(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def breaks(self, path: str, rule: Rule, times: int = 1) -> None:
        self._rules += [(path, rule)] * times

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("Content-Length", 0))
        reply: Reply | None = self._forward(handler, handler.rfile.read(size))
        if (rule := self._rule(handler.path)) is not None and reply is not None:
            reply = rule(reply)
        if reply is None:
            handler.close_connection = True
            return
        try:
            handler.send_response(reply[0])
            handler.end_headers()
            handler.wfile.write(reply[1])
        except OSError:
            pass  # the asker did not wait for it

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Reply:
        assert self._target.hostname is not None
        connection = http.client.HTTPConnection(self._target.hostname, self._target.port)
        headers = {k: v for k, v in handler.headers.items() if k.lower() != "host"}
        connection.request(handler.command, handler.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _rule(self, path: str) -> Rule | None:
        with self._lock:
            self.seen.append(path)
            for at, (wanted, rule) in enumerate(self._rules):
                if path.startswith(wanted):
                    del self._rules[at]
                    return rule
        return None


def altered(change: Callable[[dict[str, Any]], Any]) -> Rule:
    """A rule that changes the JSON of an answer."""

    def rule(reply: Reply) -> Reply:
        answer = json.loads(reply[1])
        change(answer)
        return reply[0], json.dumps(answer).encode()

    return rule
