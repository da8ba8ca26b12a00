"""`vlmrl serve` and `vlmrl watch` among guests: memory of the server, and an honest client's wait.

    python performance/guests.py [--requests 10000] [--slow 200] [--pause 20]

Each server runs in a process of its own, `serve` with a small model of random weights, `watch` with one
small run. An honest client asks it twice a second, all the time. Meanwhile come, one after the other:
requests in a row; slow guests, of whom a third does not end its head, a third does not end its body, and a
third does not read its replies; eight bodies of 150 MB that stop; twenty texts of 5 MB; two hundred clients
that leave once they have asked. Then all of it again: memory that stays is memory that grows.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

TEXT = {"role": "user", "content": "Where is the red shape?"}
CHAT = {"messages": [TEXT], "max_tokens": 1, "temperature": 0}
REPLIES = 40
"""Requests that a guest sends who reads no reply."""


class Target:
    """A server that is asked: what an honest client sends, and how long guests stay."""

    def __init__(
        self, port: int, process: psutil.Process, path: str, body: bytes | None, pause: float
    ) -> None:
        self.port, self.process, self.path, self.body = port, process, path, body
        self.pause = pause

    def mebibytes(self) -> float:
        return float(self.process.memory_info().rss) / 2**20

    def head(self, length: int) -> bytes:
        fields = "Host: localhost\r\nContent-Type: application/json\r\n"
        method = "GET" if self.body is None else "POST"
        return f"{method} {self.path} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n".encode()

    def connect(self, *sent: bytes) -> socket.socket:
        guest = socket.create_connection(("127.0.0.1", self.port), 60)
        with contextlib.suppress(OSError):  # the server may have cut it
            for part in sent:
                guest.sendall(part)
        return guest

    def ask(self, client: http.client.HTTPConnection, body: bytes | None) -> int:
        headers = {"Content-Type": "application/json"}
        client.request("GET" if body is None else "POST", self.path, body, headers)
        reply = client.getresponse()
        reply.read()
        return reply.status


class Watcher:
    """An honest client on a thread, and the most memory that the server took."""

    def __init__(self, target: Target) -> None:
        self._target, self._stop = target, threading.Event()
        self.waits: list[float] = []
        self.failed = 0
        self.most = 0.0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.5):
            begin = time.monotonic()
            client = http.client.HTTPConnection("127.0.0.1", self._target.port, timeout=60)
            try:
                self.failed += self._target.ask(client, self._target.body) != 200
            except OSError:
                self.failed += 1
            finally:
                client.close()
            self.waits.append(time.monotonic() - begin)
            self.most = max(self.most, self._target.mebibytes())

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def ask_in_a_row(target: Target, number: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    for _ in range(number):
        target.ask(client, target.body)
    client.close()


def be_slow(target: Target, number: int) -> None:
    whole = target.body or b""
    kinds = (
        (b"POST / HTTP/1.1\r\nHost: local",),
        (target.head(1_000_000), b"[" + b" " * 900_000),
        (target.head(len(whole)) + whole,) * REPLIES,
    )
    guests = [target.connect(*kinds[i % 3]) for i in range(number)]
    for guest in guests:  # each says a byte now and then
        with contextlib.suppress(OSError):
            guest.sendall(b" ")
    time.sleep(target.pause)
    for guest in guests:
        guest.close()


def stop_in_long_bodies(target: Target, number: int) -> None:
    part = b" " * 10_000_000
    guests = [target.connect(target.head(160_000_000), *[part] * 15) for _ in range(number)]
    time.sleep(target.pause)
    for guest in guests:
        guest.close()


def send_long_texts(target: Target, number: int) -> None:
    text = "hello world " * 420_000
    body = json.dumps({**CHAT, "messages": [{**TEXT, "content": text}]}).encode()
    for _ in range(number):
        client = http.client.HTTPConnection("127.0.0.1", target.port, timeout=120)
        with contextlib.suppress(OSError):
            target.ask(client, body)
        client.close()


def leave(target: Target, number: int) -> None:
    for _ in range(number):
        target.connect(target.head(len(target.body or b"")), target.body or b"").close()
    time.sleep(5)


@contextlib.contextmanager
def server(*command: str) -> Iterator[tuple[int, psutil.Process, Path]]:
    """Start a command of vlmrl; yield its port, its process and the file of its standard error."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        with errors.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vlmrl", *command, "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout is not None
            address = re.search(r"http://\S+:(\d+)", process.stdout.readline())
            if address is None:
                raise SystemExit(errors.read_text())
            try:
                yield int(address[1]), psutil.Process(process.pid), errors
            finally:
                process.terminate()
                process.wait(60)


def measure(name: str, target: Target, errors: Path, requests: int, slow: int) -> None:
    guests: list[tuple[str, Callable[[Target, int], None], int]] = [
        ("requests in a row", ask_in_a_row, requests),
        ("slow guests", be_slow, slow),
        ("bodies of 150 MB that stop", stop_in_long_bodies, 8),
        ("texts of 5 MB", send_long_texts, 20 if target.body else 0),
        ("clients that leave", leave, 200),
    ]
    ask_in_a_row(target, 20)
    print(f"`{name}`: {target.mebibytes():.0f} MiB at first\n")
    print(
        "| guests | MiB at most | MiB then | honest client, median s | longest s | not answered |"
    )
    print("|---|---|---|---|---|---|")
    for turn in ("", " again"):
        for what, play, number in filter(lambda each: each[2], guests):
            watcher = Watcher(target)
            play(target, number)
            watcher.close()
            waits = sorted(watcher.waits) or [0.0]
            print(
                f"| {number} {what}{turn} | {watcher.most:.0f} | {target.mebibytes():.0f} | "
                f"{waits[len(waits) // 2]:.3f} | {waits[-1]:.3f} | {watcher.failed} of {len(waits)} |",
                flush=True,
            )
    print(f"\ntracebacks: {errors.read_text().count('Traceback')}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--pause", type=float, default=20.0, help="Seconds that guests stay.")
    given = parser.parse_args()
    from watch import make_run

    from helpers.chat_calls import save_small_model

    with tempfile.TemporaryDirectory() as root:
        model = save_small_model(Path(root) / "tiny")
        with server("serve", str(model), "--engine", "hf") as (port, process, errors):
            body = json.dumps(CHAT).encode()
            target = Target(port, process, "/v1/chat/completions", body, given.pause)
            measure("serve", target, errors, given.requests, given.slow)
        make_run(Path(root) / "runs" / "run", 50)
        with server("watch", str(Path(root) / "runs")) as (port, process, errors):
            target = Target(port, process, "/run/run", None, given.pause)
            measure("watch", target, errors, given.requests, given.slow)


if __name__ == "__main__":
    main()
