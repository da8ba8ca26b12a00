"""Servers on the loopback that reply to JSON with JSON, as `http_score` asks them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

from helpers.chat_server import Exchange, Script, Server, Start
from vlmrl.config import Config, RewardConfig


class ScoreServer(Server):
    """A server whose script returns a JSON value, bytes for a raw body, an int in a tuple for a status."""

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(script, port)
        self.RequestHandlerClass = _Scored


class _Scored(Exchange):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        reply = self.server.script(body)
        if isinstance(reply, tuple):
            return self._say(*reply)
        return self._say(reply if isinstance(reply, bytes) else json.dumps(reply).encode())


@contextlib.contextmanager
def score_servers() -> Iterator[Start]:
    """Yield what starts a server by its script; all of them end with the context."""
    servers: list[Server] = []

    def start(script: Script, port: int = 0) -> Server:
        server = ScoreServer(script, port)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.kill()


def addresses(config: Config, url: str) -> list[str]:
    """Return the overrides by which every `http_score` of a config asks `url`."""
    return [f"{where}.options.url={url}" for where in _asking(config)]


def _asking(config: Config) -> Iterator[str]:
    listed: list[tuple[str, list[RewardConfig]]] = [("rewards", config.rewards)]
    listed += [
        (f"data.train.{n}.rewards", source.rewards or [])
        for n, source in enumerate(config.data.train)
    ]
    for where, rewards in listed:
        yield from (f"{where}.{n}" for n, r in enumerate(rewards) if r.verifier == "http_score")
