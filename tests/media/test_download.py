"""Media behind URLs: only if allowed, from allowed addresses, within a deadline and a size, once."""

from __future__ import annotations

import functools
import http.server
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmrl.errors import MediaError
from vlmrl.media.access import Access, reference
from vlmrl.media.decode import decode
from vlmrl.schema import Media, Sample, Truth

IMAGE = Image.new("RGB", (12, 8), (220, 20, 20))


def png() -> bytes:
    buffer = io.BytesIO()
    IMAGE.save(buffer, "PNG")
    return buffer.getvalue()


class Server(http.server.BaseHTTPRequestHandler):
    """Answers by path; `seen` are the paths that were asked for."""

    def __init__(self, seen: list[str], *arguments: Any) -> None:
        self.seen = seen
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.seen.append(self.path)
        kind, _, where = self.path[1:].partition("?")
        data = png()
        if kind == "redirect":
            self.send_response(302)
            self.send_header("Location", where)
            self.end_headers()
            return
        self.send_response(404 if kind == "missing" else 200)
        if kind in ("cut", "lie"):
            self.send_header("Content-Length", str(len(data) * 2 if kind == "cut" else 10**12))
        self.end_headers()
        try:
            if kind == "drip":
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.1)
            elif kind == "endless":
                while True:
                    self.wfile.write(bytes(2**16))
            else:
                self.wfile.write(data)
        except OSError:  # the reader has seen enough
            pass

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = functools.partial(Server, seen)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.daemon_threads = True
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", seen
        httpd.shutdown()
        thread.join()


def access(tmp_path: Path, **settings: Any) -> Access:
    allowed: dict[str, Any] = {"allow_urls": True, "allow_private_urls": True, "url_seconds": 1.0}
    return Access(url_cache=str(tmp_path / "cache"), **{**allowed, **settings})


def fetched(url: str, what: Access) -> Any:
    (image,) = decode(Sample("row", "test", (reference(url),), Truth()), what)
    return image


def test_url_is_fetched_once_and_only_if_allowed(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    home, seen = server
    with pytest.raises(MediaError, match="allow_urls"):
        fetched(f"{home}/a", Access())
    assert not seen
    for _ in range(3):
        np.testing.assert_array_equal(fetched(f"{home}/a", access(tmp_path)), IMAGE)
    assert seen == ["/a"]
    np.testing.assert_array_equal(fetched(f"{home}/redirect?{home}/b", access(tmp_path)), IMAGE)


@pytest.mark.parametrize(
    ("path", "settings", "reason"),
    [
        ("missing", {}, "404"),
        ("cut", {}, "too early"),
        ("drip", {}, r"data\.url_timeout_s \(1 s\)"),
        ("endless", {"max_mb": 1}, r"larger than data\.max_media_mb \(1 MiB\)"),
        ("lie", {}, r"larger than data\.max_media_mb"),
        ("a", {"allow_private_urls": False}, r"private address 127\.0\.0\.1.*allow_private_urls"),
        ("redirect?ftp://127.0.0.1/a", {}, "redirects from http to ftp"),
        ("redirect?file:///etc/passwd", {}, "not allowed"),
        ("redirect?/redirect?/redirect", {}, "cannot be fetched"),
    ],
)
def test_what_a_server_must_not_do_is_refused_by_name(
    path: str, settings: dict[str, Any], reason: str, server: tuple[str, list[str]], tmp_path: Path
) -> None:
    url = f"{server[0]}/{path}"
    began = time.monotonic()
    with pytest.raises(MediaError, match=reason) as caught:
        fetched(url, access(tmp_path, **settings))
    assert url in str(caught.value)
    assert time.monotonic() - began < 30  # a drip of all bytes would take longer
    assert not list(tmp_path.rglob("cache/*"))


def test_public_url_may_not_redirect_to_a_private_address(
    server: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first address is taken for a public one, as a name server might say of any name.
    from vlmrl.media import download as module

    home, seen = server
    real, first = module._check_peer, []

    def check(connection: Any, allow_private: bool) -> None:
        real(connection, allow_private or not first)
        first.append(1)

    monkeypatch.setattr(module, "_check_peer", check)
    limits = (5.0, 2**20, False, str(tmp_path))
    with pytest.raises(MediaError, match="private address"):
        module.download(f"{home}/redirect?{home}/secret", *limits)
    assert seen == [f"/redirect?{home}/secret"]


def test_kept_file_serves_where_the_server_does_not(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    home, seen = server
    fetched(f"{home}/a", access(tmp_path))
    sample = Sample("row", "test", (Media("image", url=f"{home}/a"),), Truth())
    no_time = access(tmp_path, url_seconds=1e-3)
    (image,) = decode(sample, no_time)
    np.testing.assert_array_equal(image, IMAGE)
    assert len(seen) == 1
