"""A server that speaks the messages that OpenEnv publishes, and knows how many sessions are open."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from vlmrl.parts.environments.openenv import Openenv

SCHEMA = {"properties": {"guess": {"type": "integer"}}, "required": ["guess"]}


class Server:
    """The number to guess is the seed; a reset may be told to fail, or to leave when it is guessed."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.url = ""
        self.opened = self.open = 0

    def __call__(self, connection: Any) -> None:
        self.opened += 1
        self.open += 1
        try:
            self._serve(connection)
        finally:
            self.open -= 1

    def all_left(self, seconds: float = 10.0) -> bool:
        """Whether no session is open soon."""
        end = time.monotonic() + seconds
        while self.open and time.monotonic() < end:
            time.sleep(0.02)
        return not self.open

    def _serve(self, connection: Any) -> None:
        wanted, leaves = 0, False
        for raw in connection:
            message = json.loads(raw)
            self.heard.append(message)
            if message["type"] == "close":
                return
            data = message.get("data", {})
            if message["type"] == "reset":
                wanted, leaves = data["seed"], data.get("leaves", False)
                if data.get("fails"):
                    _fail(connection, "EXECUTION_ERROR", "no such game")
                    continue
                seen = {"text": "Guess.", "screen": image_text(), "metadata": {}}
                answer = {"observation": seen, "reward": None, "done": False}
            elif not isinstance(data.get("guess"), int):
                _fail(connection, "VALIDATION_ERROR", "Invalid message")
                continue
            elif data["guess"] < 0:
                _fail(connection, "EXECUTION_ERROR", "the game crashed")
                continue
            else:
                right = data["guess"] == wanted
                seen = {"text": "Wrong.", "screen": image_text(), "metadata": {}}
                answer = {"observation": seen, "reward": float(right), "done": right}
            connection.send(json.dumps({"type": "observation", "data": answer}))
            if leaves and answer["done"]:
                return


def _fail(connection: Any, code: str, text: str) -> None:
    connection.send(json.dumps({"type": "error", "data": {"message": text, "code": code}}))


def image_text() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (28, 28), "red").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server on this machine, for a `with`."""
    found = pytest.importorskip("websockets.sync.server")
    server = Server()
    with found.serve(server, "127.0.0.1", 0) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        yield server
        listening.shutdown()


def guessing(url: str, **options: Any) -> Openenv:
    """The environment behind it."""
    return Openenv(url, action=SCHEMA, images=("screen",), show=("text",), timeout_s=5.0, **options)
