"""A stand-in of the Hugging Face hub, over files in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

SHA = "a" * 40


class Hub(ThreadingHTTPServer):
    """The two calls of the hub's API that a fetch makes; `contents` are files by data set and path."""

    def __init__(self, contents: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.contents, self.asked = contents, list[str]()
        self.fail_once: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        hub, path = self.server, unquote(self.path.partition("?")[0])
        owner, name, *rest = path.split("/datasets/", 1)[-1].split("/")
        repository = f"{owner}/{name}"
        contents = hub.contents.get(repository, {})
        if path.startswith("/api/datasets/"):
            info = _tree(contents) if "tree" in rest else _info(repository, contents)
            return self._answer(200, json.dumps(info).encode())
        file = path.partition(f"/{SHA}/")[2]
        if rest[:1] != ["resolve"] or file not in contents:
            return self._answer(404, b"", X_Error_Code="RepoNotFound")
        body = contents[file]
        if self.command == "GET":
            hub.asked.append(file)
            if file in hub.fail_once:
                hub.fail_once.remove(file)
                return self._answer(404, b"", X_Error_Code="EntryNotFound")
        etag = hashlib.sha1(body).hexdigest()
        return self._answer(200, body, ETag=f'"{etag}"', X_Repo_Commit=SHA, Accept_Ranges="bytes")

    do_HEAD = do_GET


def _info(repository: str, contents: dict[str, bytes]) -> dict[str, Any]:
    siblings = [{"rfilename": name, "size": len(body)} for name, body in contents.items()]
    tags = ["license:cc-by-4.0"]
    return {"id": repository, "sha": SHA, "siblings": siblings, "tags": tags, "private": False}


def _tree(contents: dict[str, bytes]) -> list[dict[str, Any]]:
    oids = {name: hashlib.sha1(body).hexdigest() for name, body in contents.items()}
    return [
        {"type": "file", "path": name, "size": len(body), "oid": oids[name]}
        for name, body in contents.items()
    ]


@contextmanager
def hub_server(contents: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """Serve data sets as the hub does."""
    server = Hub(contents)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
