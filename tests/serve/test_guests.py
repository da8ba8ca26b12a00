"""Servers and their guests: who is slow, long or gone holds little, and nobody else waits for it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from helpers.chat_calls import question
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import Batches
from vlmrl.features.serve.chat_server import build_app, read_request
from vlmrl.pages import local_server
from vlmrl.pages.local_server import Desk, server_settings, token_for, trusted_hosts
from vlmrl.schema import Completion, Prompt, Sample

WAIT_S = 0.5
REPLY = "x" * 20_000_000
"""More than the buffers of two sockets hold."""


def app_of(read: Callable[[Any], Future[Any]]) -> Starlette:
    """A server with one address that reads a body, and two that do not."""
    desk = Desk()

    async def post(request: Request) -> Response:
        return await desk.answer(request, lambda body: (read(body), JSONResponse))

    async def health(_: Request) -> Response:
        return Response("fine")

    async def long(_: Request) -> Response:
        return Response(REPLY)

    routes = [Route("/", post, methods=["POST"]), Route("/health", health), Route("/long", long)]
    return Starlette(routes=routes)


@contextmanager
def serving(app: Starlette) -> Iterator[int]:
    """Serve as `listen` does, on a thread; yield the port."""
    settings = server_settings(app, "127.0.0.1", 0)
    listening = settings.bind_socket()
    listening.listen()
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(30)
    listening.close()
    assert not thread.is_alive()


def answered(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(local_server, "WAIT_S", WAIT_S)
    with serving(app_of(lambda body: answered(len(body)))) as port:
        yield port


def connect(port: int, *sent: bytes) -> socket.socket:
    guest = socket.create_connection(("127.0.0.1", port), 20)
    for part in sent:
        guest.sendall(part)
    return guest


def head(length: int, path: str = "/") -> bytes:
    fields = (
        f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    return f"POST {path} HTTP/1.1\r\n{fields}".encode()


def ask(port: int, body: bytes = b"[1]") -> tuple[int, float]:
    """Return the status of an honest request, and how long it took."""
    begin = time.monotonic()
    with connect(port, head(len(body)), body) as guest:
        return int(guest.recv(100).split()[1]), time.monotonic() - begin


def seconds_until_cut(guest: socket.socket, drip: bytes = b"") -> float:
    """Return when the server closes a connection on which nothing, or a byte now and then, comes."""
    begin = time.monotonic()
    guest.settimeout(WAIT_S / 5)
    while time.monotonic() - begin < 20:
        try:
            guest.sendall(drip)
            if not guest.recv(1000):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - begin


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "127.0.0.2", "localhost"])
def test_every_name_of_the_loopback_is_one(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(local_server.TOKEN, raising=False)
    assert token_for(host) is None
    app = build_app(None, "tiny", None, trusted_hosts(host))  # type: ignore[arg-type]
    client = TestClient(app)
    for name in ("[::1]", "127.0.0.1", "localhost", f"[{host}]" if host == "::1" else host):
        for stated in (name, f"{name}:8000"):
            assert client.get("/health", headers={"Host": stated}).status_code == 200
    for name in ("evil.example", "[::2]", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert client.get("/health", headers={"Host": name}).status_code == 400


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "])
@pytest.mark.parametrize("drip", [b"", b"y"])
def test_a_head_that_does_not_end_is_cut(port: int, sent: bytes, drip: bytes) -> None:
    with connect(port, sent) as guest:
        assert seconds_until_cut(guest, drip) < 10
    assert ask(port)[0] == 200


@pytest.mark.parametrize("drip", [b"", b" "])
def test_a_body_that_does_not_end_is_answered_so_and_cut(port: int, drip: bytes) -> None:
    with connect(port, head(100_000), b"[1]") as guest:
        guest.settimeout(15)
        if drip:
            guest.sendall(drip)
        assert guest.recv(1000).split()[1] == b"408"
        assert seconds_until_cut(guest, drip) < 10


def test_a_body_that_is_too_long_is_refused_before_it_comes(port: int) -> None:
    with connect(port, head(local_server.MAX_BYTES + 1)) as guest:
        begin = time.monotonic()
        assert guest.recv(1000).split()[1] == b"413" and time.monotonic() - begin < WAIT_S * 10
        assert seconds_until_cut(guest) < 10


def test_a_reply_that_nobody_reads_is_cut_and_one_that_is_read_is_whole(port: int) -> None:
    asked = b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(port, asked * 2) as unread, connect(port, asked) as slow:
        read = 0
        while read < len(REPLY):
            part = slow.recv(2**20)
            assert part
            read += len(part)
            time.sleep(WAIT_S / 5)
        assert seconds_until_cut(unread, b"GET / HTTP/1.1\r\n") < 10


def test_who_left_leaves_no_traceback_and_no_work(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    works: list[Future[Any]] = []

    def read(_: object) -> Future[Any]:
        works.append(Future())
        return works[-1]

    with serving(app_of(read)) as port:
        connect(port, b"POST / HT").close()
        connect(port, head(100), b"[").close()
        connect(port, head(3), b"[1]").close()
        with connect(port, head(3), b"[1]") as guest:
            while len(works) < 2:
                time.sleep(0.01)
            assert not works[1].cancelled()
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        end = time.monotonic() + 20
        while not all(work.cancelled() for work in works) and time.monotonic() < end:
            time.sleep(0.01)
    assert all(work.cancelled() for work in works)
    assert capfd.readouterr().err == ""


def test_a_server_answers_others_while_it_reads_a_body() -> None:
    reading = threading.Event()
    go_on = threading.Event()

    def read(_: object) -> Future[Any]:
        reading.set()
        assert go_on.wait(30)
        return answered(1)

    with serving(app_of(read)) as port, connect(port, head(3), b"[1]") as guest:
        assert reading.wait(30)
        with connect(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as other:
            assert other.recv(100).split()[1] == b"200"
        go_on.set()
        assert guest.recv(100).split()[1] == b"200"


def test_long_bodies_wait_for_room_and_short_ones_do_not(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "SLOWEST_BODY", 2**18)  # 4 s more for each MiB
    size = local_server.MAX_HELD // 4
    guests = [connect(port, head(size), b"[") for _ in range(4)]
    time.sleep(0.2)
    with connect(port, head(size), b"[") as another:
        assert ask(port)[0] == 200
        assert another.recv(1000).split()[1] == b"503"
    for guest in guests:
        guest.close()
    end = time.monotonic() + 20
    body = b"[" + b" " * 2**21 + b"]"
    while (status := ask(port, body)[0]) == 503 and time.monotonic() < end:
        pass
    assert status == 200


def test_a_request_of_too_many_values_or_too_much_text_is_refused(port: int) -> None:
    assert ask(port, b"[" + b"0," * local_server.MAX_ITEMS + b"0]")[0] == 400
    body = question()
    body["messages"][0]["content"] = "a" * 2**19
    assert read_request(body).sample.system
    body["messages"][1]["content"] = [{"type": "text", "text": "b" * 2**18}] * 3
    with pytest.raises(UserError, match=r"messages: expected at most 1048576 characters"):
        read_request(body)
    client = TestClient(build_app(None, "tiny", None, ("*",)))  # type: ignore[arg-type]
    reply = client.post("/tokenize", json={"prompt": "c" * (2**20 + 1)})
    assert reply.status_code == 400 and "prompt: expected at most" in reply.text


class Stuck:
    """A model that is busy until it is let go on."""

    rates = False

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.prompts: list[Sample] = []

    def prompt(self, sample: Sample, access: object) -> Prompt:
        self.prompts.append(sample)
        assert self.let_go.wait(30)
        raise UserError("no")

    def answer(
        self, prompts: object, sampling: Sampling
    ) -> list[tuple[Completion, ...]]:  # pragma: no cover
        raise AssertionError

    def close(self) -> None:
        pass


def test_a_question_whose_asker_left_is_forgotten_while_it_waits() -> None:
    model = Stuck()
    batches = Batches(model, 1)
    asked = [read_request(json.loads(json.dumps(question(seed=1)))) for _ in range(3)]
    first, second, third = [batches.ask(one.sample, one.sampling) for one in asked]
    while not model.prompts:
        time.sleep(0.01)
    assert second.cancel()
    model.let_go.set()
    for future in (first, third):
        with pytest.raises(UserError, match="no"):
            future.result(30)
    batches.close()
    assert len(model.prompts) == 2
