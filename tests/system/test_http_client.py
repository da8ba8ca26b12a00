"""The one HTTP client: what is sent and returned, and that no server keeps it beyond its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vlmrl.system import http_client
from vlmrl.system.http_client import NoReply, request


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/silent":
            time.sleep(3)
            return
        self.send_response(302 if self.path == "/elsewhere" else 200)
        self.send_header("Location", "/silent")
        self.end_headers()
        if self.path == "/drip":
            with pytest.raises(OSError):  # it is cut
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            return
        self.wfile.write(f"{self.path} {self.headers.get('Authorization')} ".encode() + body)

    do_GET = do_POST

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_json_and_the_token_are_sent_and_the_reply_comes_back(url: str) -> None:
    reply = request("POST", f"{url}/path?mode=keep", {"a": 1}, "secret", 20.0)
    assert (reply.status, reply.data) == (200, b'/path?mode=keep Bearer secret {"a": 1}')
    assert request("GET", url, None, None, 20.0).data == b"/ None "
    assert len(request("GET", url, None, None, 20.0, max_bytes=3).data) == 4
    assert request("GET", f"{url}/elsewhere", None, None, 20.0).status == 302


@pytest.mark.parametrize("path", ["/silent", "/drip"])
def test_no_server_keeps_it_beyond_its_time(url: str, path: str) -> None:
    begin = time.monotonic()
    with pytest.raises(NoReply, match=r"no reply within 0\.5 s") as failure:
        request("POST", url + path, None, None, 0.5)
    assert failure.value.late and time.monotonic() - begin < 2.5


def test_a_server_that_is_looked_at_may_be_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        raise RuntimeError("dead")

    monkeypatch.setattr(http_client, "LOOK_S", 0.1)
    with pytest.raises(RuntimeError, match="dead"):
        request("POST", f"{url}/silent", None, None, 60.0, look=look)


def test_a_refused_connection_is_not_late() -> None:
    with pytest.raises(NoReply, match="ConnectionRefusedError") as failure:
        request("GET", "http://127.0.0.1:9", None, None, 20.0)
    assert not failure.value.late
